// What the workspace has to hold for fp8_matmul besides what gemm needs.
#pragma once
#include "llmc/ops.h"

int64_t cpu_fp8_operand_bytes(OpsShape shape); // 0 where the shape has no fp8
