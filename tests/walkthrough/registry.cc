// In place of src/adapter/registry.cc: the method that docs/adding-an-adapter-method.md walks through, whatever a job's options call it.
#include "adapter/adapter.h"
#include "adapter/example.h"

namespace cotune {

const Method& method_of(AdapterMethod) { return example_method(); }

std::unique_ptr<Adapter> make_adapter(const ModelConfig& config, AdapterSetup setup) { return make_example(config, std::move(setup)); }

}  // namespace cotune
