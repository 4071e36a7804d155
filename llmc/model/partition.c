// The layout of units and the owners of their ranges. See partition.h.
#include "llmc/model/partition.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/memory_plan.h"

#include <stdlib.h>

enum { MOST_CELLS = 64 }; // of a unit: they bound the number of norm parts

static int cell_count(int groups) {
    while (groups > MOST_CELLS) groups /= 2;
    return (int)max_i64(groups, 1);
}

static int64_t padded_elements(const Parameter *p) {
    return round_up(parameter_numel(p), PLAN_ALIGNMENT);
}

// ---------------------------------------------------------------------------------- units of cells

// Cells begin at multiples of PLAN_ALIGNMENT of the memory, so at multiples of STATE_BLOCK of their
// parameters.
_Static_assert(PLAN_ALIGNMENT % STATE_BLOCK == 0,
               "a cell begins where a block of 8-bit state does");

static int64_t cut_unit(Partition *p, const Parameter *table, int num_parameters, int unit,
                        int cells) {
    int64_t end = p->begin[unit], *bounds = p->bounds + unit * (p->processes + 1);
    for (int i = 0; i < num_parameters; i++) {
        if (p->units[i] != unit) continue;
        p->offsets[i] = end;
        end += padded_elements(&table[i]);
    }

    const int64_t cell =
        ceil_div(end - p->begin[unit], (int64_t)cells * PLAN_ALIGNMENT) * PLAN_ALIGNMENT;
    for (int r = 0; r <= p->processes; r++)
        bounds[r] = p->begin[unit] + (int64_t)r * cells / p->processes * cell;
    return p->begin[unit] + cells * cell;
}

// -------------------------------------------------------------------------- units of whole tensors

// Gives the tensors of the unit to processes, the costliest first, each to the process with the
// least work so far. In memory they are in the order of their owners. load (processes) accumulates
// over the units.
static int64_t spread_unit(Partition *p, const Parameter *table, int num_parameters, int unit,
                           OptimizerKind kind, double *load) {
    int *owner = malloc((size_t)num_parameters * sizeof *owner);
    REQUIRE_MEMORY(owner, "the owners of tensors");
    for (int i = 0; i < num_parameters; i++) owner[i] = p->units[i] == unit ? -1 : p->processes;

    for (;;) {
        int next = -1, least = 0;
        double most = -1;
        for (int i = 0; i < num_parameters; i++) {
            const double cost =
                optimizer_matmul_flops(kind, &table[i]) + (double)parameter_numel(&table[i]);
            if (owner[i] >= 0 || cost <= most) continue;
            most = cost;
            next = i;
        }
        if (next < 0) break;

        for (int r = 1; r < p->processes; r++)
            if (load[r] < load[least]) least = r;
        owner[next] = least;
        load[least] += most;
    }

    int64_t end = p->begin[unit], *bounds = p->bounds + unit * (p->processes + 1);
    for (int r = 0; r < p->processes; r++) {
        bounds[r] = end;
        for (int i = 0; i < num_parameters; i++) {
            if (owner[i] != r) continue;
            p->offsets[i] = end;
            end += padded_elements(&table[i]);
        }
    }

    bounds[p->processes] = end;
    free(owner);
    return end;
}

// -------------------------------------------------------------------------------------- norm parts

static void list_norm_parts(Partition *p, const Parameter *table, int num_parameters,
                            const int *cells) {
    int most = num_parameters;
    for (int i = 0; i < num_parameters; i++) most += cells[p->units[i]];
    p->norm_parts = malloc((size_t)most * sizeof *p->norm_parts);
    REQUIRE_MEMORY(p->norm_parts, "the parts of the norm");

    for (int i = 0; i < num_parameters; i++) {
        const int unit = p->units[i];
        const int64_t numel = parameter_numel(&table[i]), begin = p->begin[unit];
        // The elements of a cell; 0: the parameter is a single part.
        const int64_t cell = cells[unit] > 0 ? (p->begin[unit + 1] - begin) / cells[unit] : 0;

        for (int64_t done = 0, n; done < numel; done += n) {
            const int64_t at = p->offsets[i] + done;
            n = numel - done;
            if (cell > 0) n = min_i64(n, cell - (at - begin) % cell);
            int owner = 0;
            while (at >= partition_of_unit(p, unit, owner).end) owner++;
            p->norm_parts[p->num_norm_parts++] = (NormPart){i, {done, done + n}, owner};
        }
    }
}

// Every cut of a unit makes one more.
int64_t partition_max_norm_parts(const ModelConfig *config, int groups) {
    return parameter_count(config) + (config->L + 1) * (cell_count(groups) - 1);
}

// ------------------------------------------------------------------------------------------ object

Partition *partition_create(const ModelConfig *config, OptimizerKind kind, int groups,
                            int processes) {
    const int n = parameter_count(config);
    Parameter *table = parameter_table(config);
    Partition *p = calloc(1, sizeof *p);
    REQUIRE_MEMORY(p, "the layout of the parameters");

    p->num_units = (int)config->L + 1;
    p->processes = (int)max_i64(processes, 1);
    p->begin = calloc((size_t)p->num_units + 1, sizeof *p->begin);
    p->bounds = calloc((size_t)p->num_units * ((size_t)p->processes + 1), sizeof *p->bounds);
    p->offsets = calloc((size_t)n, sizeof *p->offsets);
    p->units = calloc((size_t)n, sizeof *p->units);
    int *cells = calloc((size_t)p->num_units, sizeof *cells); // 0: whole tensors
    double *load = calloc((size_t)p->processes, sizeof *load);
    REQUIRE_MEMORY(p->begin && p->bounds && p->offsets && p->units && cells && load,
                   "the layout of the parameters");

    for (int u = 0; u < p->num_units; u++) cells[u] = cell_count(groups);
    for (int i = 0; i < n; i++) {
        const UpdateRule rule = optimizer_rule(kind, &table[i]);
        p->units[i] = p->num_units - 1;
        if (table[i].block >= 0) p->units[i] = table[i].block;
        if (rule == RULE_ADAFACTOR || rule == RULE_DIRECTION) cells[p->units[i]] = 0;
    }

    for (int u = 0; u < p->num_units; u++) {
        if (cells[u] > 0)
            p->begin[u + 1] = cut_unit(p, table, n, u, cells[u]);
        else
            p->begin[u + 1] = spread_unit(p, table, n, u, kind, load);
    }

    p->elements = p->begin[p->num_units];
    list_norm_parts(p, table, n, cells);

    free(cells);
    free(load);
    free(table);
    return p;
}

void partition_destroy(Partition *p) {
    if (!p) return;
    free(p->begin);
    free(p->bounds);
    free(p->offsets);
    free(p->units);
    free(p->norm_parts);
    free(p);
}

Range partition_of_unit(const Partition *p, int unit, int process) {
    const int64_t *bounds = p->bounds + unit * (p->processes + 1) + process;
    return (Range){bounds[0], bounds[1]};
}
