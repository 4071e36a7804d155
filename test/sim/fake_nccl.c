// An NCCL that is too old.
int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    *version = 21705;
    return 0;
}
