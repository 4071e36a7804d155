// GPT-2's spelling of bytes: each of the 256 is one printable character, so that tokens can be
// stored in JSON and in text files. Printable Latin-1 bytes stand for themselves, the 68 others for
// U+0100 and up, in order: a space is "Ġ".
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint32_t alphabet_character(unsigned char byte);
// The bytes that the n bytes of UTF-8 at text spell, into out (capacity n). False: some character
// spells no byte.
bool alphabet_decode(const char *text, size_t n, char *out, size_t *bytes);
// The spelling of n bytes into out (capacity 2 n); returns its length.
size_t alphabet_encode(const char *bytes, size_t n, char *out);
