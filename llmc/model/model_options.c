// Options that exclude each other, and options that follow from others.
#include "llmc/model/model_options.h"

#include "llmc/base/arithmetic.h"
#include "llmc/device.h"
#include "llmc/model/gpu_sizes.h"

bool model_check_options(const ModelOptions *o, Error *err) {
    if (o->fp8) {
        // fp8 matmuls need dimensions in multiples of 16: those of the model, and the tokens of a
        // micro-batch. As a micro-batch may have any number of sequences (-b auto, the last one of
        // a step), T must be such a multiple.
        if (o->dtype != DTYPE_BF16)
            return error_set(err,
                             "--fp8: needs --dtype bf16, not %s; head and attention stay in bf16",
                             dtype_name(o->dtype));
        if (!o->sizes &&
            !device_facts()
                 ->supports[DTYPE_E4M3]) // else planned for a GPU, which gpu_check_types knows
            return error_set(
                err, "--fp8: %s has no fp8 matmuls (GPUs from sm_89 on have them); leave it out",
                device_facts()->name);
        if (o->config.C % FP8_MULTIPLE != 0)
            return error_set(err, "--fp8: C = %lld is not a multiple of %d", (long long)o->config.C,
                             FP8_MULTIPLE);

        const int64_t HS = model_head_size(&o->config),
                      heads[] = {o->config.NH, o->config.NH + 2 * model_kv_heads(&o->config)};
        for (int i = 0; i < 2; i++)
            if (heads[i] * HS % FP8_MULTIPLE != 0)
                return error_set(err,
                                 "--fp8: %lld heads of %lld are %lld columns of a matmul, not a "
                                 "multiple of %d; a head "
                                 "size that is one (HS) fits any number of heads",
                                 (long long)heads[i], (long long)HS, (long long)(heads[i] * HS),
                                 FP8_MULTIPLE);

        if (o->config.d_ff % FP8_MULTIPLE != 0)
            return error_set(err, "--fp8: d_ff = %lld is not a multiple of %d; use --d-ff %lld",
                             (long long)o->config.d_ff, FP8_MULTIPLE,
                             (long long)round_up(o->config.d_ff, FP8_MULTIPLE));
        if (o->T % FP8_MULTIPLE != 0)
            return error_set(err, "--fp8: -t %lld is not a multiple of %d; use %lld",
                             (long long)o->T, FP8_MULTIPLE,
                             (long long)round_up(o->T, FP8_MULTIPLE));
    }

    if (o->train && o->offload && !optimizer_is_elementwise(o->optimizer))
        return error_set(err,
                         "--offload optimizer: the state is streamed in slices, but %s needs whole "
                         "matrices; use "
                         "another --optimizer, or leave --offload out",
                         optimizer_name(o->optimizer));
    if (o->train && o->optimizer == OPTIMIZER_MUON && o->dtype == DTYPE_FP16 &&
        o->gradients_in_dtype)
        return error_set(
            err,
            "--grad-dtype compute: muon writes its directions to the gradients without the loss "
            "scale, and fp16 cannot represent numbers that small; use --grad-dtype fp32 or --dtype "
            "bf16");
    return true;
}

ModelOptions model_options_effective(const ModelOptions *options) {
    ModelOptions o = *options;
    if (o.dtype == DTYPE_FP32) o.gradients_in_dtype = false; // they are already fp32
    o.master = optimizer_keeps_master(o.optimizer, o.master, o.dtype);
    return o;
}

OpsShape model_ops_shape(const ModelOptions *o) {
    OpsShape shape = {
        .B = o->B,
        .T = o->T,
        .C = o->config.C,
        .NH = o->config.NH,
        .NKV = model_kv_heads(&o->config),
        .HS = model_head_size(&o->config),
        .Vp = o->config.Vp,
        .widest = max_i64(model_size(&o->config, DIM_QKV), model_size(&o->config, DIM_FC)),
        .num_tensors = partition_max_norm_parts(&o->config, o->groups),
        .sequences = o->sequences,
        .factored =
            o->train && o->optimizer == OPTIMIZER_ADAFACTOR ? parameter_total(&o->config) : 0,
        .fp8 = o->fp8,
        .forward_only = !o->train,
        .gelu_again = o->train && recompute_gelu_alone(&o->recompute, o->config.L),
        .dtype = o->dtype};
    return shape;
}

int64_t model_workspace_bytes(const ModelOptions *o) {
    enum { MOST_WORKSPACE = 80 }; // the capability for which cuDNN's largest forms are taken
    const OpsShape shape = model_ops_shape(o);
    const PlannedSizes *gpu = o->sizes;
    if (!gpu) return ops_workspace_bytes(shape);
    if (gpu->memory == 0) return 0;
    const int capability = (int)positive_or(gpu->compute_capability, MOST_WORKSPACE);
    int64_t cudnn = 0;
    if (gpu->attention == ATTENTION_FAST)
        cudnn = cuda_size_cudnn_fast(shape, capability);
    else if (gpu->attention != ATTENTION_OWN)
        cudnn = cuda_size_cudnn(shape, capability, cuda_size_cudnn_limit(gpu->memory));
    return cuda_size_workspace(shape, gpu->compute_capability, cudnn);
}

int64_t model_head_chunk_rows(const ModelOptions *o) {
    const OpsShape shape = model_ops_shape(o);
    if (!o->sizes) return ops_head_chunk_rows(shape);
    if (o->sizes->memory == 0) return 1;
    return cuda_size_head_chunk_rows(shape, (int)max_i64(o->sizes->num_sms, 1), o->sizes->memory);
}

DType model_gradient_dtype(const ModelOptions *o) {
    if (o->gradients_in_dtype) return o->dtype;
    return DTYPE_FP32;
}

bool model_is_divided(const ModelOptions *o) { return o->divided && o->processes > 1; }

bool model_frees_gradients(const ModelOptions *o) {
    return model_is_divided(o) && o->group_count <= 1 && o->group_windows <= o->B &&
           o->config.L > NUM_BUCKETS;
}

Range model_own_range(const ModelOptions *o, const Partition *p, const Parameter *parameter,
                      int index, int process) {
    const int64_t numel = parameter_numel(parameter), first = p->offsets[index];
    if (!model_is_divided(o)) return (Range){0, numel};
    const Range owned = partition_of_unit(p, p->units[index], process);
    const int64_t begin = max_i64(owned.begin - first, 0), end = min_i64(owned.end - first, numel);
    if (begin < end) return (Range){begin, end};
    return (Range){0, 0};
}
