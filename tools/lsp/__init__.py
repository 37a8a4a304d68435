# SPDX-License-Identifier: Apache-2.0
"""
`penstock-lsp`: a language server for IR (`.mlir`), kernels (`.pk`) and machine files (`.toml`).

`documents` says what a server asks of a document; `ir_text`, `kernel_text` and `machine_text` answer, each by the
parser and the checks that the commands have; `server` speaks the Language Server Protocol (3.17).
"""
