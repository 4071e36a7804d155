// The parameter table: order, names, initial values.
#include "llmc/model/parameters.h"
#include "test/test.h"

#include <math.h>

static ModelConfig config_of(const char *descriptor) {
    ModelConfig c;
    assert_true(model_config_parse(&c, descriptor, NULL));
    return c;
}

TEST(every_tensor_has_its_own_name_and_its_index) {
    ModelConfig c = config_of("L=3,C=8,NH=2,V=7,T=5");
    const int n = parameter_count(&c);
    assert_int_equal(n, 4 + 12 * 3);
    Parameter *table = parameter_table(&c);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        total += parameter_numel(&table[i]);
        const int spec = (int)(table[i].spec - parameter_specs);
        assert_int_equal(parameter_index(&c, spec, table[i].block), i);
        for (int j = 0; j < i; j++) assert_string_not_equal(table[i].name, table[j].name);
    }
    assert_int_equal(total, parameter_total(&c));
    assert_string_equal(table[parameter_index(&c, PARAM_QKVW, 2)].name, "transformer.h.2.attn.c_attn.weight");
    assert_string_equal(table[parameter_index(&c, PARAM_LNFB, 0)].name, "transformer.ln_f.bias");
    const Parameter *wte = &table[parameter_index(&c, PARAM_WTE, 0)];
    assert_int_equal(wte->rows, 128);
    assert_int_equal(wte->file_rows, 7);
    free(table);
}

TEST(initial_values_do_not_depend_on_how_they_are_asked_for) {
    ModelConfig c = config_of("L=2,C=12,NH=3,V=50,T=9");
    Parameter *table = parameter_table(&c);
    const int index = parameter_index(&c, PARAM_FCPROJW, 1);
    const int64_t n = parameter_numel(&table[index]);
    float *whole = malloc((size_t)n * sizeof *whole), piece[17];
    parameter_init_values(whole, &c, &table[index], index, 1337, 0, n);
    for (int64_t first = 0; first < n; first += 17) {
        const int64_t count = n - first < 17 ? n - first : 17;
        parameter_init_values(piece, &c, &table[index], index, 1337, first, count);
        assert_memory_equal(piece, whole + first, (size_t)count * sizeof *piece);
    }
    free(whole);
    free(table);
}

TEST(initial_values_have_gpt2s_deviation_and_padding_is_zero) {
    ModelConfig c = config_of("L=8,C=256,NH=4,V=300,T=64");
    Parameter *table = parameter_table(&c);
    const int specs[] = {PARAM_WTE, PARAM_QKVW, PARAM_ATTPROJW};
    const double expected[] = {0.02, 0.02, 0.02 / 4.0}; // sqrt(2 * 8) = 4
    for (int s = 0; s < 3; s++) {
        const int index = parameter_index(&c, specs[s], 0);
        const int64_t n = parameter_numel(&table[index]), used = table[index].file_rows * table[index].cols;
        float *x = malloc((size_t)n * sizeof *x);
        parameter_init_values(x, &c, &table[index], index, 7, 0, n);
        double sum = 0, sumsq = 0;
        for (int64_t i = 0; i < used; i++) sum += x[i], sumsq += (double)x[i] * x[i];
        const double sd = sqrt(sumsq / (double)used);
        // Five standard errors: of a mean sd / sqrt(n), of a deviation sd / sqrt(2 n).
        assert_true(fabs(sum / (double)used) < 5 * expected[s] / sqrt((double)used));
        assert_true(fabs(sd - expected[s]) < 5 * expected[s] / sqrt(2.0 * (double)used));
        for (int64_t i = used; i < n; i++) assert_true(x[i] == 0.0f);
        free(x);
    }
    free(table);
}

TEST(tensors_and_seeds_get_different_values) {
    ModelConfig c = config_of("L=2,C=16,NH=1,V=20,T=8");
    Parameter *table = parameter_table(&c);
    float a[64], b[64];
    const int first = parameter_index(&c, PARAM_QKVW, 0), second = parameter_index(&c, PARAM_QKVW, 1);
    parameter_init_values(a, &c, &table[first], first, 1, 0, 64);
    parameter_init_values(b, &c, &table[second], second, 1, 0, 64);
    assert_memory_not_equal(a, b, sizeof a);
    parameter_init_values(b, &c, &table[first], first, 2, 0, 64);
    assert_memory_not_equal(a, b, sizeof a);
    free(table);
}
