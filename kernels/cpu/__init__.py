"""CPU kernels, generated as LLVM IR at run time."""
