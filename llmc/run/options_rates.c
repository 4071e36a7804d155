// From options to the rates of each group of parameters, see options_rates.h.
#include "llmc/run/options_rates.h"

double options_learning_rate(const Options *o) {
    if (o->lr >= 0) return o->lr;
    return optimizer_default_learning_rate(o->optimizer);
}

bool options_rates(const Options *o, GroupRates rates[NUM_GROUPS], Error *err) {
    double lr_head = o->lr_head;
    if (lr_head < 0) lr_head = o->lr_embedding;
    const struct {
        const char *option;
        double learning_rate;
    } own[NUM_GROUPS] = {
        [GROUP_EMBEDDING] = {"--lr-embedding", o->lr_embedding},
        [GROUP_HEAD] = {"--lr-head", lr_head},
        [GROUP_MATRIX] = {NULL, -1},
        [GROUP_VECTOR] = {"--lr-vectors", o->lr_vectors},
    };
    const double learning_rate = options_learning_rate(o);
    optimizer_default_rates(o->optimizer, o->weight_decay, rates);
    for (int i = 0; i < NUM_GROUPS; i++) {
        GroupRates *r = &rates[i];
        if (own[i].learning_rate >= 0) {
            if (own[i].learning_rate == 0 || learning_rate == 0)
                return error_set(err, "%s: it and -l must be above 0; leave it out", own[i].option);
            r->rate = own[i].learning_rate / learning_rate;
        }
        if (o->beta1 >= 0) r->beta1 = o->beta1;
        if (o->beta2 >= 0) r->beta2 = o->beta2;
        if (o->eps >= 0) r->eps = o->eps;
    }
    return optimizer_parse_rates(rates, o->by_group, err) || error_prefix(err, "--by-group");
}
