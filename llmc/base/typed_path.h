// Paths and patterns that people type and paste: quoted for a shell, escaped for glob(7), looked
// for in the directory in which they were typed. Every message that tells a user to type a path
// uses this. Changes no file.
#pragma once
#include <stdbool.h>

// Writes a path as one word for a shell (bash, zsh): unchanged if it is plain, else in quotes, on
// one line whatever bytes it has. One that begins with - gets ./ so that no program takes it for an
// option. The text is in static memory, for messages: it lasts until QUOTED_PATHS more were made.
// (A stack of a few hundred KiB has no room for several in each function.)
enum { QUOTED_PATHS = 16 };
typedef struct {
    const char *text;
} QuotedPath;
QuotedPath path_quoted(const char *path);

// The glob(7) pattern that matches this path only, malloced.
char *path_escaped(const char *path);
// The pattern of the files that are numbered like this one, malloced: a/train_000012.bin ->
// a/train_*.bin. One without a number: the file itself.
char *path_numbered(const char *path);

// The path with the home directory in place of a ~ or ~USER at its beginning, malloced. Shells do
// this for whole words, but not after the = of --output=~/run, where a directory named ~ would be
// made.
char *path_from_home(const char *path);

// "directory/path", or the path itself if it begins with /; malloced.
char *path_in(const char *directory, const char *path);
// A path or pattern that was typed in `directory`, as it is to be typed now, malloced: in that
// directory if something matches there, else unchanged.
char *path_typed_in(const char *directory, const char *pattern);
char *path_working_directory(void); // malloced; "" if it has no name

// A program or script of the checkout that this program belongs to, "data/prepare", as one word for
// a shell: relative if it can be reached from the working directory.
QuotedPath path_of_tool(const char *name);
