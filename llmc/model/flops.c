#include "llmc/model/flops.h"

#include "llmc/model/parameters.h"

double flops_per_token_llmc(const ModelConfig *config, int64_t T) {
    double N = (double)parameter_total(config), L = (double)config->L, C = (double)config->C;
    return 6.0 * N + 6.0 * L * C * (double)T;
}

double flops_per_token_exact(const ModelConfig *config, int64_t T) {
    double L = (double)config->L, C = (double)config->C, Vp = (double)config->Vp;
    return 72.0 * L * C * C + 6.0 * Vp * C + 6.0 * L * C * (double)(T + 1);
}

double flops_per_token_hardware(const ModelConfig *config, int64_t T, const Recompute *recompute) {
    const double attention = 6.0 * (double)config->L * (double)config->C * (double)(T + 1);
    return flops_per_token_exact(config, T) + attention / 6.0 + recompute_flops_per_token(recompute, config, T);
}
