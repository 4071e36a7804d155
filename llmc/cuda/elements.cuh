// Elements as they travel: 16 bytes as one int4 register quadruple and as floats. Where Pack<T> names single elements,
// these keep the 32-bit words whole, which saves an instruction an element in kernels that are short of them.
#pragma once
#include "llmc/cuda/kernel.cuh"

template <class T> static __device__ __forceinline__ int4 load_bits(const T *p) {
    return *reinterpret_cast<const int4 *>(p);
}
// Streaming: read or written once, leave the caches to others.
template <class T> static __device__ __forceinline__ int4 load_bits_once(const T *p) {
    return __ldcs(reinterpret_cast<const int4 *>(p));
}
template <class T> static __device__ __forceinline__ void store_bits(T *p, int4 bits) {
    *reinterpret_cast<int4 *>(p) = bits;
}
template <class T> static __device__ __forceinline__ void store_bits_once(T *p, int4 bits) {
    __stcs(reinterpret_cast<int4 *>(p), bits);
}

// The elements of one 32-bit word: one of fp32, two of 16 bits, the lower half first. bf16 is the upper half of a
// float.
static __device__ __forceinline__ void word_to_floats(float *v, int word, float) { v[0] = __int_as_float(word); }
static __device__ __forceinline__ void word_to_floats(float *v, int word, bf16) {
    v[0] = __uint_as_float((unsigned)word << 16);
    v[1] = __uint_as_float((unsigned)word & 0xffff0000u);
}
static __device__ __forceinline__ void word_to_floats(float *v, int word, fp16) {
    __half2 two;
    memcpy((void *)&two, &word, sizeof word);
    v[0] = __low2float(two);
    v[1] = __high2float(two);
}
static __device__ __forceinline__ int word_from_floats(const float *v, float) { return __float_as_int(v[0]); }
static __device__ __forceinline__ int word_from_floats(const float *v, bf16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(v[0], v[1]);
    int word;
    memcpy(&word, (const void *)&two, sizeof word);
    return word;
}
static __device__ __forceinline__ int word_from_floats(const float *v, fp16) {
    const __half2 two = __floats2half2_rn(v[0], v[1]);
    int word;
    memcpy(&word, (const void *)&two, sizeof word);
    return word;
}

// v: Pack<T>::N floats. Rounds to nearest even.
template <class T> static __device__ __forceinline__ void bits_to_floats(float *v, int4 bits) {
    constexpr int N = 4 / (int)sizeof(T);
    word_to_floats(v, bits.x, T());
    word_to_floats(v + N, bits.y, T());
    word_to_floats(v + 2 * N, bits.z, T());
    word_to_floats(v + 3 * N, bits.w, T());
}
template <class T> static __device__ __forceinline__ int4 bits_from_floats(const float *v) {
    constexpr int N = 4 / (int)sizeof(T);
    return make_int4(word_from_floats(v, T()), word_from_floats(v + N, T()), word_from_floats(v + 2 * N, T()),
                     word_from_floats(v + 3 * N, T()));
}

// How many whole packs an element-wise op may take from n elements at each p: none when one is not 16-byte aligned.
template <class T, class... P> static inline int64_t whole_packs(int64_t n, const P *...p) {
    return ((uintptr_t)p | ...) % 16 == 0 ? n / Pack<T>::N : 0;
}
