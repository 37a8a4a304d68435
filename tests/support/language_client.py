# SPDX-License-Identifier: Apache-2.0
"""A client of the Language Server Protocol, that starts `penstock-lsp` as a process and speaks to it on its stdin."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from lsprotocol import types
from pygls.lsp.client import LanguageClient

SECONDS = 300
"""How long an answer is waited for."""


class Session:
    """A client that is connected, with the diagnostics that it has been sent."""

    def __init__(self, folder: Path, encoding: str = "utf-16"):
        self.client = LanguageClient("test-client", "1")
        self.folder = folder
        self.published: dict[str, list[types.PublishDiagnosticsParams]] = {}
        self.shown: list[str] = []
        self._encoding = encoding
        self._news = asyncio.Condition()
        self._version = 0

        async def publish(params: types.PublishDiagnosticsParams) -> None:
            async with self._news:
                self.published.setdefault(params.uri, []).append(params)
                self._news.notify_all()

        def show(params: types.ShowMessageParams) -> None:
            self.shown.append(params.message)

        for name, handler in ((types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, publish), (types.WINDOW_SHOW_MESSAGE, show)):
            cast(Any, self.client).feature(name)(handler)

    async def start(self) -> types.InitializeResult:
        """Start the server, and tell it what the client can do."""
        code = "from penstock.tools.lsp.command import main; main()"
        await cast(Any, self.client).start_io(sys.executable, "-c", code)
        general = types.GeneralClientCapabilities(position_encodings=[types.PositionEncodingKind(self._encoding)])
        params = types.InitializeParams(types.ClientCapabilities(general=general), root_uri=self.folder.as_uri())
        found = await asyncio.wait_for(self.client.initialize_async(params), SECONDS)
        self.client.initialized(types.InitializedParams())
        return found

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def named(self, name: str) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri(name))

    def open(self, name: str, text: str) -> None:
        self._version += 1
        item = types.TextDocumentItem(self.uri(name), Path(name).suffix[1:], self._version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        self._version += 1
        whole = types.TextDocumentContentChangeWholeDocument(text)
        named = types.VersionedTextDocumentIdentifier(self._version, self.uri(name))
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(named, [whole]))

    async def diagnostics(self, name: str) -> list[types.Diagnostic]:
        """Those of the text that was sent last."""
        version, uri = self._version, self.uri(name)

        def is_there() -> bool:
            return any(each.version == version for each in self.published.get(uri, ()))

        async with self._news:
            await asyncio.wait_for(self._news.wait_for(is_there), SECONDS)
        return list(self.published[uri][-1].diagnostics)

    async def checked(self, name: str, text: str) -> list[types.Diagnostic]:
        """Open a document, or change it, and wait for its diagnostics."""
        (self.change if self.uri(name) in self.published else self.open)(name, text)
        return await self.diagnostics(name)

    async def hover(self, name: str, at: types.Position) -> str:
        found = await self.client.text_document_hover_async(types.HoverParams(self.named(name), at))
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    async def definition(self, name: str, at: types.Position) -> list[types.Location]:
        found: Any = await self.client.text_document_definition_async(types.DefinitionParams(self.named(name), at))
        return list(found or ())

    async def references(self, name: str, at: types.Position) -> list[types.Location]:
        params = types.ReferenceParams(types.ReferenceContext(include_declaration=True), self.named(name), at)
        return list(await self.client.text_document_references_async(params) or ())

    async def completion(self, name: str, at: types.Position) -> list[types.CompletionItem]:
        params = types.CompletionParams(self.named(name), at)
        found: Any = await self.client.text_document_completion_async(params)
        return list(found or ())

    async def symbols(self, name: str) -> list[types.DocumentSymbol]:
        found: Any = await self.client.text_document_document_symbol_async(types.DocumentSymbolParams(self.named(name)))
        return list(found or ())

    async def stop(self) -> int | None:
        """End the session; the exit status of the server."""
        await asyncio.wait_for(self.client.shutdown_async(None), SECONDS)
        self.client.exit(None)
        await asyncio.wait_for(self.client.stop(), SECONDS)
        process = self.client._server  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        return process.returncode


def in_session(folder: Path, body: Callable[[Session], Awaitable[None]], encoding: str = "utf-16") -> None:
    """Run what a client does, from its first message to its last, after which the server must have left soundly."""

    async def run() -> None:
        session = Session(folder, encoding)
        await session.start()
        await body(session)
        assert await session.stop() == 0
        assert session.shown == []

    asyncio.run(run())


def place(text: str, of: str, *, nth: int = 0, behind: bool = False) -> types.Position:
    """Where the nth occurrence of some words in a text begins, or ends, in UTF-16."""
    at = -1
    for _ in range(nth + 1):
        at = text.index(of, at + 1)
    at += len(of) if behind else 0
    line = text.count("\n", 0, at)
    start = text.rfind("\n", 0, at) + 1
    return types.Position(line, len(text[start:at].encode("utf-16-le")) // 2)


def covered(text: str, extent: types.Range) -> str:
    """The words of a text that a range covers, in UTF-16; on one line."""
    assert extent.start.line == extent.end.line
    line = text.split("\n")[extent.start.line].encode("utf-16-le")
    return line[2 * extent.start.character : 2 * extent.end.character].decode("utf-16-le")
