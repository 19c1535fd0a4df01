"""A file's text and the positions in it: UTF-8 bytes as ``ast`` counts, lines and columns as people do."""

import ast
import codecs
import io
import re
import tokenize
from bisect import bisect_right

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.MULTILINE)


class SourceText:
    """Source text as UTF-8 bytes, with the way back to the encoding it was read in."""

    def __init__(self, raw: bytes, *, encoding: str | None = None) -> None:
        self.encoding = encoding or _encoding(raw)
        self.text = raw.decode(self.encoding)
        self.data = self.text.encode()
        self.line_starts = [0, *(match.end() for match in _NEWLINE.finditer(self.data))]
        newline = _NEWLINE.search(self.data)
        self.newline = newline[0].decode() if newline else "\n"
        self._held: dict[str, bool] = {}

    def edited(self, data: bytes) -> "SourceText":
        """The same file with other UTF-8 text."""
        return SourceText(data.decode().encode(self.encoding), encoding=self.encoding)

    def encode(self) -> bytes:
        """The text in the file's own encoding."""
        return self.text.encode(self.encoding)

    def holds(self, word: str) -> bool:
        """Whether ``word`` stands anywhere in the text."""
        known = self._held.get(word)
        if known is None:
            known = self._held[word] = word in self.text
        return known

    def offset(self, line: int, column: int) -> int:
        """The byte at ``line`` (from 1) and ``column`` (UTF-8 bytes from 0), as ``ast`` counts."""
        return self.line_starts[min(line, len(self.line_starts)) - 1] + column

    def start(self, node: ast.stmt | ast.expr | ast.keyword | ast.arg) -> int:
        """The first byte of ``node``."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr | ast.keyword | ast.arg) -> int:
        """The byte behind ``node``."""
        return self.offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def segment(self, node: ast.stmt | ast.expr | ast.keyword | ast.arg) -> str:
        """The source text of ``node``."""
        return self.data[self.start(node) : self.end(node)].decode()

    def line_bytes(self, line: int) -> bytes:
        """The bytes of ``line`` (from 1) with its newline."""
        ends = self.line_starts[line] if line < len(self.line_starts) else len(self.data)
        return self.data[self.line_starts[line - 1] : ends]

    def line_at(self, offset: int) -> int:
        """The line (from 1) that holds the byte ``offset``."""
        return bisect_right(self.line_starts, offset)

    def column(self, line: int, column: int) -> int:
        """The column a person counts (characters, from 1) for UTF-8 byte ``column`` of ``line``."""
        start = self.line_starts[min(line, len(self.line_starts)) - 1]
        return len(self.data[start : start + column].decode(errors="replace")) + 1

    def comments(self) -> dict[int, str]:
        """Each line's comment, if it has one."""
        found: dict[int, str] = {}
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT:
                    found[token.start[0]] = token.string
        except (tokenize.TokenError, SyntaxError):
            pass  # what parses by ast may still end in a way that tokenize dislikes; the comments so far count
        return found


def _encoding(raw: bytes) -> str:
    """The encoding by mark or cookie; raises SyntaxError for one that does not exist."""
    if raw.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if _COOKIE.search(raw, 0, 400):
        return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
    return "utf-8"
