// See edit_distance.h.
#include "llmc/base/edit_distance.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static bool same_letter(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

int edit_distance(const char *a, const char *b) {
    const int n = (int)strlen(a), m = (int)strlen(b);
    REQUIRE(n <= EDIT_LONGEST && m <= EDIT_LONGEST, "words of %d and %d bytes", n, m);
    int d[EDIT_LONGEST + 1][EDIT_LONGEST + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            const int change = d[i - 1][j - 1] + !same_letter(a[i - 1], b[j - 1]);
            const int shift = (int)min_i64(d[i - 1][j], d[i][j - 1]) + 1;
            d[i][j] = (int)min_i64(change, shift);
            bool swapped = i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                           same_letter(a[i - 2], b[j - 1]);
            if (swapped && d[i - 2][j - 2] + 1 < d[i][j]) d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[n][m];
}
