// The workspace of attention_decode (decode_attention.cu), for attention.c.
#pragma once
#include "llmc/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

int64_t cuda_decode_workspace(OpsShape shape);

#ifdef __cplusplus
}
#endif
