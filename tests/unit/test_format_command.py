# SPDX-License-Identifier: Apache-2.0
"""`penstock format`: the one form of a text of kernels, and what it does to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

LOOSE = """\
# A product,

# by tiles.
kernel product [B=4]( f32 a[N,K],f32 b[K,M] )->(f32 c[N,M]){   # whole tiles
  f32 acc[ B,M ]=-(inf)
  for k in 0 : K:B
  {
  }
}
"""
FORM = """\
# A product,

# by tiles.
kernel product[B = 4](f32 a[N, K], f32 b[K, M]) -> (f32 c[N, M]) {  # whole tiles
    f32 acc[B, M] = -inf
    for k in 0:K:B {
    }
}
"""


def test_a_file_takes_its_form_and_keeps_its_comments(
    penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.pk").write_text(LOOSE.replace("K:B\n  {", "K:B {"))
    assert penstock("format", "x.pk", "--stdout").out == FORM
    unformatted = penstock("format", "--check", "x.pk")
    assert (unformatted.status, unformatted.err) == (1, "x.pk is not formatted\n")
    assert penstock("format", "x.pk").status == 0
    assert Path("x.pk").read_text() == FORM
    assert penstock("format", "--check", "x.pk").status == 0


def test_a_brace_stands_on_the_line_of_its_head(
    penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.pk").write_text(LOOSE)
    done = penstock("format", "x.pk")
    assert done.status == 1
    assert done.err == (
        "x.pk:6:19: error: the line ends too early\n  for k in 0 : K:B\n                  ^\n"
        'note: expected an operator, "(", ",", "[" or "{"\n'
    )
    assert Path("x.pk").read_text() == LOOSE
