"""Awkward names that users may give to classes, tasks, columns, files and methods."""

NAMES = (
    "a|b", "x_y", "_lead", "50%", "R&D", "#1", "~", "^", "\\", r"\|", "{x}", "$x$", "5$", "<b>",
    "`code`", "*bold*", "[link](x)", "[red]rich markup[/red]", ":cat:", "&amp;", "a--b-->",
    "two\nlines", "t\tab", "c\rr", " lead", "trail ", "\x1b[31mred", "nul\0", "\u2028", "\x85",
    "\u202eright to left", "z\u200bero", "e\u0301", "猫", "\U0001f469\u200d\U0001f52c", "قطة",
    "żółw", "n" * 300, "Case", "case", "nan", "=1+1", 'q"u,o\'te',
)  # fmt: skip
