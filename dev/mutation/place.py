"""Where a mistake is planted: a text that a source has once, whatever its line breaks and indents."""
import re


def places(old, text):
    """-> the matches of old in text; a run of spaces and line breaks in one is as good as any other"""
    return list(re.finditer(r"\s+".join(re.escape(word) for word in old.split()), text))


def replaced(old, new, text):
    """-> text with new in place of old, or None where text has old not once. Line breaks and indents at the ends of old
    belong to it, so that a whole line can be taken out."""
    found = places(old, text)
    if len(found) != 1:
        return None
    begin, end = found[0].span()
    if old[:1].isspace():
        begin = len(text[:begin].rstrip(" "))
    if old.endswith("\n") and text[end:end + 1] == "\n":
        end += 1
    return text[:begin] + new + text[end:]
