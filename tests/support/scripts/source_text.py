"""Scripts whose text is unusual: empty, broken, of odd encodings and line ends, with odd warnings of the compiler."""

from __future__ import annotations

SCRIPTS: dict[str, str | bytes] = {
    "empty": "",
    "only_docstring": '"""Nothing else."""',
    "only_future": "from __future__ import division",
    "syntax_error": "print(1)\nfor x in [1:\n    print(x",
    "syntax_error_from_the_compiler": "print(1)\nfor x in [1]:\n    print(x)\nreturn 3",
    "indentation_error": "if 1:\nprint(2)",
    "tab_error": "if 1:\n        print(1)\n\tprint(2)",
    "null_byte": b"print(1)\n\0\nprint(2)\n",
    "not_utf8": b"print('\xff')\n",
    "unknown_cookie": b"# -*- coding: no-such-codec -*-\nprint(1)\n",
    "latin_1": "# -*- coding: latin-1 -*-\nprint(ascii('\xe4\xf6'), len('\xe4'))\nfor c in list('\xe4'): 1/len(c[1:])\n".encode(
        "latin-1"
    ),
    "bom": b"\xef\xbb\xbfprint('with a BOM')\nfor x in map(int, '12'): print(x)\n1/0",
    "crlf": b"for x in map(int, '12'):\r\n    print(x, '''a\r\nb''')\r\nraise ValueError\r\n",
    "form_feed": b"print(1)\n\x0c\nfor x in map(int, '12'):\n    print(x)\n\x0c\nraise ValueError",
    "line_continuation": "for x in \\\n    map(int, '12'): \\\n    print(x); y = x\nprint(y \\\n  .z)",
    "invalid_escape": "for x in map(str, [1]):\n    print('\\d' + x)",
    "odd_comparison": "for x in map(str, [1]):\n    print(x is '1', 'a' is x)\nassert (x, 'always')",
    "two_loops_on_a_line": "for x in map(int, '12'): print(x)\nelse: print('else')\nwhile len('a'): break\nelse: print('never')",
    "deep_nesting": "\n".join(f"{' ' * i}for x{i} in map(int, '1'):" for i in range(19))
    + "\n"
    + " " * 19
    + "print(x0, x18)\nraise ValueError",
    "too_deep_to_rewrite_is_still_run": "x = "
    + "+".join(["1"] * 800)
    + "\nprint(x)\nfor y in map(int, '12'): print(y)",
}
