// Lines on stderr that tell the user about an input, once however many processes there are.
#pragma once
#include "llmc/run/options.h"

void advice_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void advice_print_lines(const char *text); // a line each

// Adds to the error of an input of a resumed run where its path was looked for; always false.
bool advice_add_directories(const Options *options, const char *long_name, Error *err);
