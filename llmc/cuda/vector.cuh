// N neighbouring elements of any floating type as one register value: what a thread holds where the number of elements,
// not of bytes, is the same for several types (a gradient in bf16 and the fp32 sum it is added to). Loaded and stored
// in accesses of up to 16 bytes. N = 1 serves rows whose size is no multiple of 16 bytes, with the same kernel text.
// Pack (kernel.cuh) is the case of exactly 16 bytes. Owns nothing.
#pragma once
#include "llmc/cuda/elements.cuh"
#include "llmc/cuda/kernel.cuh"

// The integer that moves BYTES bytes with one instruction.
template <int BYTES> struct Access;
template <> struct Access<2> { typedef unsigned short Bits; };
template <> struct Access<4> { typedef unsigned Bits; };
template <> struct Access<8> { typedef int2 Bits; };
template <> struct Access<16> { typedef int4 Bits; };

template <class T, int N> struct Vector {
    static constexpr int BYTES = N * (int)sizeof(T) < 16 ? N * (int)sizeof(T) : 16; // of one access
    static constexpr int STEP = BYTES / (int)sizeof(T);                             // elements of one access
    typedef typename Access<BYTES>::Bits Bits;
    T v[N];
};

// p is aligned to BYTES. once: read or written once, leave the caches to others.
template <class T, int N, bool once = false> static __device__ __forceinline__ Vector<T, N> load_vector(const T *p) {
    typedef Vector<T, N> X;
    X x;
    for (int i = 0; i < N; i += X::STEP) {
        const typename X::Bits *from = reinterpret_cast<const typename X::Bits *>(p + i);
        const typename X::Bits bits = once ? __ldcs(from) : *from;
        memcpy((void *)(x.v + i), &bits, X::BYTES);
    }
    return x;
}
template <class T, int N, bool once = false>
static __device__ __forceinline__ void store_vector(T *p, const Vector<T, N> &x) {
    typedef Vector<T, N> X;
    for (int i = 0; i < N; i += X::STEP) {
        typename X::Bits *to = reinterpret_cast<typename X::Bits *>(p + i), bits;
        memcpy(&bits, (const void *)(x.v + i), X::BYTES);
        if (once)
            __stcs(to, bits);
        else
            *to = bits;
    }
}

// Element by element; whole words at a time where there are any.
template <class T, int N> static __device__ __forceinline__ void to_floats(float (&v)[N], const Vector<T, N> &x) {
    constexpr int per_word = 4 / (int)sizeof(T);
    if constexpr (N % per_word == 0) {
        for (int i = 0; i < N; i += per_word) {
            int word;
            memcpy(&word, (const void *)(x.v + i), sizeof word);
            word_to_floats(v + i, word, T());
        }
    } else {
        for (int i = 0; i < N; i++) v[i] = to_float(x.v[i]);
    }
}
// Rounds to nearest even.
template <class T, int N> static __device__ __forceinline__ Vector<T, N> from_floats(const float (&v)[N]) {
    constexpr int per_word = 4 / (int)sizeof(T);
    Vector<T, N> x;
    if constexpr (N % per_word == 0) {
        for (int i = 0; i < N; i += per_word) {
            const int word = word_from_floats(v + i, T());
            memcpy((void *)(x.v + i), &word, sizeof word);
        }
    } else {
        for (int i = 0; i < N; i++) x.v[i] = from_float<T>(v[i]);
    }
    return x;
}

// sum += x.
template <class T, int N> static __device__ __forceinline__ void add_to(float (&sum)[N], const Vector<T, N> &x) {
    float v[N];
    to_floats(v, x);
    for (int k = 0; k < N; k++) sum[k] += v[k];
}
// p[0 .. N) += sum, rounded once.
template <class T, int N> static __device__ __forceinline__ void add_vector(T *p, const float (&sum)[N]) {
    float v[N];
    to_floats(v, load_vector<T, N>(p));
    for (int k = 0; k < N; k++) v[k] += sum[k];
    store_vector(p, from_floats<T, N>(v));
}
