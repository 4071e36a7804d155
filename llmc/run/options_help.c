// --help: the option table as a page, grouped, with defaults and ranges.
#include "llmc/run/option_table.h"

#include <string.h>

enum { HELP_COLUMN = 36, PAGE_WIDTH = 110 };

// Upper limits from here on guard against typing errors; nobody plans by them. Messages still name them.
static const double NO_CONCERN = 1e6;

// Prints words from column HELP_COLUMN on, in lines of at most PAGE_WIDTH columns.
static void print_wrapped(FILE *out, const char *text) {
    int column = HELP_COLUMN;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > PAGE_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

// "[4; 1..65536]": default and range. Choices and flags already show theirs beside the name.
static void describe_values(const OptionRow *row, char *buf, size_t size) {
    if (row->type == OPTION_STRING && !*row->fallback) {
        buf[0] = '\0';
    } else if (row->type == OPTION_STRING || option_is_flag(row) || row->min == row->max) {
        snprintf(buf, size, " [%s]", row->fallback);
    } else if (row->max >= NO_CONCERN) {
        snprintf(buf, size, " [%s; %g..]", row->fallback, option_least(row));
    } else {
        snprintf(buf, size, " [%s; %.15g..%.15g]", row->fallback, option_least(row), row->max);
    }
}

static void print_row(FILE *out, const OptionRow *row) {
    char names[128], values[128], text[512];
    snprintf(names, sizeof names, "  %s%s%s--%s %s", row->short_name ? "-" : "", row->short_name ? row->short_name : "",
             row->short_name ? ", " : "", row->long_name, row->metavar);
    describe_values(row, values, sizeof values);
    snprintf(text, sizeof text, "%s%s", row->help, values);
    fprintf(out, "%-*s", HELP_COLUMN, names);
    if (strlen(names) >= HELP_COLUMN) fprintf(out, "\n%*s", HELP_COLUMN, "");
    print_wrapped(out, text);
}

void option_print_help(FILE *out, const char *program) {
    fprintf(out,
            "Pretrains GPT-2 models.\n"
            "\n"
            "usage: %s [options]\n"
            "  values: -b 4, -b=4, --batch-size 4 or --batch-size=4; [default; smallest..largest]\n"
            "\n"
            "Examples\n"
            "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M     train, save to runs/124M\n"
            "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M -y  go on where it stopped\n"
            "  %s -e runs/124M/step_00005000 -x 0 -v 1 -m 0              evaluate and sample only\n",
            program, program, program, program);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        if (i == 0 || rows[i].group != rows[i - 1].group) fprintf(out, "\n%s\n", rows[i].group);
        print_row(out, &rows[i]);
    }
    fprintf(out, "\n%-*sthis page\n", HELP_COLUMN, "  --help");
}
