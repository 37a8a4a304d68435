# SPDX-License-Identifier: Apache-2.0
"""
The server: the Language Server Protocol (3.17) on stdin and stdout, by pygls (the extra `lsp`).

Documents are read in one thread beside the one that speaks, each some time after its last change. What is asked about
a document is answered from its text as it is now; only completions, which stand in a text that is half typed, are found
by what was read last.
"""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from penstock import __version__
from penstock.lowering.text_places import Extent
from penstock.tools.lsp.documents import Completion, Document, Kind, Lines, Location, Problem, Symbol
from penstock.tools.lsp.ir_text import IrText, complete_ir
from penstock.tools.lsp.kernel_text import KernelText, complete_kernel
from penstock.tools.lsp.machine_text import MachineText, complete_machine

SECONDS = 0.2
"""How long a document is left alone after a change before it is read."""
SOURCE = "penstock"

T = TypeVar("T")


@dataclass(frozen=True)
class Language:
    """How texts of a language are read, and how words in them are completed."""

    read: Callable[[str, str], Document]
    complete: Callable[[str, int, Any], Sequence[Completion]]
    word: re.Pattern[str] = re.compile(r"[\w-]*$")
    """What is completed: what stands on the line before the cursor, and is replaced."""


LANGUAGES: Mapping[str, Language] = {
    ".mlir": Language(IrText, complete_ir, re.compile(r"[%@#!^]?[\w$.-]*$")),
    ".pk": Language(KernelText, complete_kernel),
    ".toml": Language(MachineText, complete_machine),
}
"""By the ends of the names of files."""
_SYMBOLS = {
    Kind.FUNCTION: types.SymbolKind.Function,
    Kind.PART: types.SymbolKind.Object,
}
_COMPLETIONS = {
    Kind.FUNCTION: types.CompletionItemKind.Function,
    Kind.MODULE: types.CompletionItemKind.Module,
    Kind.VARIABLE: types.CompletionItemKind.Variable,
    Kind.TYPE: types.CompletionItemKind.Class,
    Kind.OPERATION: types.CompletionItemKind.Function,
    Kind.PROPERTY: types.CompletionItemKind.Property,
    Kind.KEYWORD: types.CompletionItemKind.Keyword,
    Kind.CONSTANT: types.CompletionItemKind.Constant,
    Kind.PART: types.CompletionItemKind.Reference,
}


@dataclass
class Opened:
    """A document that a client has opened."""

    uri: str
    language: Language
    text: str
    version: int | None
    read: Document | None = None
    """As it was read last; its text says which one that was."""
    published: tuple[str, int | None] | None = None
    """The text and the version whose problems the client has been told."""
    task: asyncio.Task[None] | None = None
    """What reads it after a change."""


@dataclass
class Documents:
    """The open documents, and the thread that reads them."""

    publish: Callable[[Opened, Document], None]
    opened: dict[str, Opened] = field(default_factory=dict[str, Opened])
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "reader"))

    def change(self, uri: str, text: str, number: int | None) -> None:
        """Take the text that a document has now, and have it read some time later."""
        known = self.opened.get(uri)
        if known is None:
            language = LANGUAGES.get(Path(to_fs_path(uri) or uri).suffix)
            if language is None:
                return
            known = self.opened[uri] = Opened(uri, language, text, number)
        else:
            if known.task is not None:
                known.task.cancel()
            known.text, known.version = text, number
        known.task = asyncio.get_running_loop().create_task(self._read_later(known))

    def close(self, uri: str) -> None:
        """Forget a document."""
        known = self.opened.pop(uri, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    async def _read_later(self, document: Opened) -> None:
        await asyncio.sleep(0 if document.read is None else SECONDS)
        await self.current(document)

    async def current(self, document: Opened) -> Document:
        """A document as it is now."""
        while (read := document.read) is None or read.text != document.text:
            text = document.text
            read = await self.run(partial(_read, document.language, _path(document.uri), text))
            if self.opened.get(document.uri) is not document:
                return read
            if text == document.text:
                document.read = read
        if document.published != (told := (document.text, document.version)):
            document.published = told
            self.publish(document, read)
        return read

    async def run(self, body: Callable[[], T]) -> T:
        """What a function returns, which runs in the thread that reads."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, body)


class Unreadable:
    """A document that broke what reads it, which is a fault of ours."""

    def __init__(self, text: str, error: Exception):
        self.text = text
        message = f"this is a fault of Penstock, not of the text: {type(error).__name__}: {error}".split("\n")[0]
        self.problems: Sequence[Problem] = [Problem(Extent(0, 0), message, is_warning=True)]

    def hover(self, position: int) -> None:
        """Nothing is known."""

    def definitions(self, position: int) -> Sequence[Location]:
        """Nothing is known."""
        return ()

    def occurrences(self, position: int) -> Sequence[tuple[Extent, bool]]:
        """Nothing is known."""
        return ()

    def symbols(self) -> Sequence[Symbol]:
        """Nothing is known."""
        return ()


def _path(uri: str) -> str:
    return to_fs_path(uri) or uri


def _read(language: Language, path: str, text: str) -> Document:
    try:
        return language.read(path, text)
    except Exception as error:
        # The log of the editor shows stderr.
        traceback.print_exc(file=sys.stderr)
        return Unreadable(text, error)


def make_server() -> LanguageServer:
    """A server with all that it answers."""
    # Clients and pygls do not agree what ends a line, so that parts of a text could go to a wrong place.
    server = LanguageServer("penstock-lsp", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)

    def encoding() -> str:
        return str(getattr(server.workspace.position_encoding, "value", server.workspace.position_encoding))

    def range_of(lines: Lines, extent: Extent) -> types.Range:
        start, end = (types.Position(*lines.units(place, encoding())) for place in extent)
        return types.Range(start, end)

    def location_of(uri: str, lines: Lines, location: Location) -> types.Location:
        if not location.path:
            return types.Location(uri, range_of(lines, location.extent))
        there = from_fs_path(location.path) or location.path
        return types.Location(there, range_of(Lines(location.text), location.extent))

    def publish(document: Opened, read: Document) -> None:
        lines = Lines(read.text)
        found = [
            types.Diagnostic(
                range_of(lines, each.extent),
                each.message,
                types.DiagnosticSeverity.Warning if each.is_warning else types.DiagnosticSeverity.Error,
                source=SOURCE,
                related_information=[
                    types.DiagnosticRelatedInformation(location_of(document.uri, lines, place), message)
                    for place, message in each.related
                ],
            )
            for each in read.problems
        ]
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, found, document.version))

    documents = Documents(publish)

    async def ask(
        named: types.TextDocumentIdentifier, at: types.Position, question: Callable[[Document, Lines, int], T]
    ) -> T | None:
        """What a document says of a position; None for one that is not open, and for a fault of ours."""
        document = documents.opened.get(named.uri)
        if document is None:
            return None
        read = await documents.current(document)
        lines = Lines(read.text)
        position = lines.position(at.line, at.character, encoding())
        return await guarded(documents.run(partial(question, read, lines, position)))

    async def guarded(answer: Awaitable[T]) -> T | None:
        try:
            return await answer
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return None

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def did_open(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        documents.change(item.uri, item.text, item.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        documents.change(uri, server.workspace.get_text_document(uri).source, params.text_document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    async def did_close(params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        documents.close(uri)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        def question(read: Document, lines: Lines, position: int) -> types.Hover | None:
            found = read.hover(position)
            if found is None:
                return None
            content = types.MarkupContent(types.MarkupKind.Markdown, found.text)
            return types.Hover(content, range_of(lines, found.extent))

        return await ask(params.text_document, params.position, question)

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: types.DefinitionParams) -> list[types.Location] | None:
        uri = params.text_document.uri

        def question(read: Document, lines: Lines, position: int) -> list[types.Location]:
            return [location_of(uri, lines, each) for each in read.definitions(position)]

        return await ask(params.text_document, params.position, question)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def references(params: types.ReferenceParams) -> list[types.Location] | None:
        uri, declares = params.text_document.uri, params.context.include_declaration

        def question(read: Document, lines: Lines, position: int) -> list[types.Location]:
            found = read.occurrences(position)
            return [
                types.Location(uri, range_of(lines, extent)) for extent, defines in found if declares or not defines
            ]

        return await ask(params.text_document, params.position, question)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    async def highlight(params: types.DocumentHighlightParams) -> list[types.DocumentHighlight] | None:
        def question(read: Document, lines: Lines, position: int) -> list[types.DocumentHighlight]:
            kinds = types.DocumentHighlightKind
            return [
                types.DocumentHighlight(range_of(lines, extent), kinds.Write if defines else kinds.Read)
                for extent, defines in read.occurrences(position)
            ]

        return await ask(params.text_document, params.position, question)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol] | None:
        def told(lines: Lines, each: Symbol) -> types.DocumentSymbol:
            return types.DocumentSymbol(
                each.name or "?",
                _SYMBOLS[each.kind],
                range_of(lines, each.extent),
                range_of(lines, each.named),
                each.detail,
                children=[told(lines, child) for child in each.children],
            )

        def question(read: Document, lines: Lines, position: int) -> list[types.DocumentSymbol]:
            return [told(lines, each) for each in read.symbols()]

        return await ask(params.text_document, types.Position(0, 0), question)

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[".", "%", "@", "#", "!", "^", '"'])
    )
    async def completion(params: types.CompletionParams) -> list[types.CompletionItem] | None:
        document = documents.opened.get(params.text_document.uri)
        if document is None:
            return None
        lines = Lines(document.text)
        position = lines.position(params.position.line, params.position.character, encoding())
        latest = None if isinstance(document.read, Unreadable) else document.read
        body = partial(document.language.complete, document.text, position, latest)
        found = await guarded(documents.run(body))
        line = document.text[lines.start_of(lines.line_of(position)) : position]
        word = document.language.word.search(line)
        start = position - (0 if word is None else len(word[0]))
        return [item_of(range_of(lines, Extent(start, position)), each) for each in found or ()]

    def item_of(replaced: types.Range, each: Completion) -> types.CompletionItem:
        return types.CompletionItem(
            each.text,
            kind=_COMPLETIONS[each.kind],
            detail=each.detail or None,
            documentation=types.MarkupContent(types.MarkupKind.Markdown, each.documentation)
            if each.documentation
            else None,
            text_edit=types.TextEdit(replaced, each.text),
        )

    return server


def serve() -> None:
    """Serve one client on stdin and stdout, to its end."""
    stdout = sys.stdout.buffer
    # What a pass or a package prints must not be taken for a message of the protocol.
    sys.stdout = cast(Any, sys.stderr)
    make_server().start_io(sys.stdin.buffer, stdout)
