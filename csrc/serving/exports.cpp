// The C interface of whole requests (ops/serving/score.py).
#include "abi.h"
#include "serving/score.h"

// Of handles of mg_frozen_create and mg_dense_create, which must outlive it.
MG_EXPORT int32_t mg_score_create(void* tables, void* program, int64_t num_features, int64_t num_numbers,
                                  int64_t num_columns, const int64_t* input_kinds, int64_t num_inputs, void** out) {
  return megalith::guarded("make a model ready for requests", [&] {
    *out = new megalith::ServedModel(*static_cast<const megalith::FrozenTables*>(tables),
                                     *static_cast<megalith::DenseProgram*>(program), num_features, num_numbers,
                                     num_columns, input_kinds, num_inputs);
  });
}

MG_EXPORT void mg_score_destroy(void* handle) noexcept { delete static_cast<megalith::ServedModel*>(handle); }

// `fault` is set to 1 where something is wrong with the request, and left alone where not.
MG_EXPORT int32_t mg_score_run(void* handle, const float* numbers, const void* values, int32_t index_bytes,
                               int64_t num_values, const int32_t* lengths, int64_t batch, int64_t workers, float* out,
                               int32_t* fault) {
  return megalith::guarded("score a request", [&] {
    const megalith::ScoreCall call{numbers, values, index_bytes, num_values, lengths, batch, workers, out};
    if (!static_cast<megalith::ServedModel*>(handle)->score(call)) *fault = 1;
  });
}

// Room for offsets and pooled vectors of requests.
MG_EXPORT int32_t mg_score_bytes(void* handle, int64_t* bytes) {
  return megalith::guarded("count bytes", [&] { *bytes = static_cast<megalith::ServedModel*>(handle)->scratch_bytes(); });
}
