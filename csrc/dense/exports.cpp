// The C interface of dense programs (ops/dense/program.py).
#include "abi.h"
#include "dense/program.h"

// Records are those of dense/program.h, each field 64 bits wide.
MG_EXPORT int32_t mg_dense_create(const int64_t* steps, int64_t num_steps, const int64_t* operands,
                                  int64_t num_operands, const int64_t* values, int64_t num_values,
                                  const int64_t* buffers, int64_t num_buffers, const void* tensors,
                                  const int64_t* sizes, int64_t num_tensors, const int64_t* results,
                                  int64_t num_results, void** out) {
  return megalith::guarded("pack the weights of a dense program", [&] {
    const megalith::ProgramParts parts{reinterpret_cast<const megalith::DenseStep*>(steps),
                                       num_steps,
                                       operands,
                                       num_operands,
                                       reinterpret_cast<const megalith::DenseValue*>(values),
                                       num_values,
                                       reinterpret_cast<const megalith::DenseBuffer*>(buffers),
                                       num_buffers,
                                       static_cast<const void* const*>(tensors),
                                       sizes,
                                       num_tensors,
                                       reinterpret_cast<const megalith::DenseResult*>(results),
                                       num_results};
    *out = new megalith::DenseProgram(parts);
  });
}

MG_EXPORT void mg_dense_destroy(void* handle) noexcept { delete static_cast<megalith::DenseProgram*>(handle); }

// `inputs` are pointers to samples, `strides` the floats between two of them; `out` is [batch, columns of
// all results].
MG_EXPORT int32_t mg_dense_run(void* handle, const void* inputs, const int64_t* strides, int64_t batch,
                               int64_t workers, float* out) {
  return megalith::guarded("run a dense program", [&] {
    static_cast<megalith::DenseProgram*>(handle)->run(
        {static_cast<const float* const*>(inputs), strides, batch, workers, out});
  });
}

// Of weights, and of room for the samples of all threads that have run it.
MG_EXPORT void mg_dense_bytes(void* handle, int64_t* out) noexcept {
  out[0] = static_cast<megalith::DenseProgram*>(handle)->weight_bytes();
  out[1] = static_cast<megalith::DenseProgram*>(handle)->workspace_bytes();
}
