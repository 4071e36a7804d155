// The simulated cuDNN can be asked for this, and it tells tests this. C and C++. Without SIM_CUDNN
// there is no cuDNN.
//   SIM_CUDNN=1                  cuDNN 9.19.0 is found
//   SIM_CUDNN=92500              the same, of this version
//   SIM_CUDNN=1,slow             kernels are slower than own ones, by the clock of sim_set_clock
//                                alone
//   SIM_CUDNN=1,unrepeatable     the last bit of an output differs from run to run
//   SIM_CUDNN=1,noted            engines say that their results need not repeat
//   SIM_CUDNN=1,wrong            constants of graphs, the scale of scores too, are half as large
//                                again
//   SIM_CUDNN=1,idle             kernels write nothing
//   SIM_CUDNN=1,uncompilable     no kernel compiles
//   SIM_CUDNN=1,engineless       the heuristics have no engine for any graph
//   SIM_CUDNN=92500,stored:slow  this for the graphs of one kind: forward; stored, whose backward
//                                pass keeps dS; ordered, the other backward pass
// Read whenever it counts, so that a test may change it.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    long descriptors; // that exist now
    long handles;     // that exist now
    long compiled;    // kernels so far
    long launched;    // kernels so far, or captured
    long run;         // kernels so far, replays counted
} SimCudnnCounts;
extern SimCudnnCounts sim_cudnn_counts;

#ifdef __cplusplus
}
#endif
