#include "plan/shapes/weight_forms.h"

#include "schedule/memory/weight_memory.h"

namespace cotune {

int64_t held_weight_bytes(const ModelConfig& model, const StageShape& stage, const WeightForms& forms, int64_t copies) {
  return predict_weight_bytes(model, {.element_size = forms.element_size,
                                      .packed = forms.packed,
                                      .parts = forms.parts,
                                      .tensor_parallel = stage.tensor_parallel,
                                      .process_stages = {stage},
                                      .weight_copies = copies});
}

}  // namespace cotune
