// What a call that takes an Error said into `err`, the test program's own.
#pragma once
#include <string.h>

#define assert_ok(condition)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) fail_msg("%s", err.text);                                                                    \
    } while (0)

#define assert_message(part)                                                                                           \
    do {                                                                                                               \
        if (!strstr(err.text, part)) fail_msg("\"%s\" does not say \"%s\"", err.text, part);                           \
    } while (0)
