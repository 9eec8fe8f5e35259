/// The entries of the option table, one file for each section of the jobs file. Each function adds its own, in the order in which
/// they are applied, shown and written.
#pragma once

#include <vector>

#include "jobs/option_table.h"

namespace cotune::options {

void add_model(std::vector<Option>& table);
void add_run(std::vector<Option>& table);
void add_job(std::vector<Option>& table);
void add_data(std::vector<Option>& table);
void add_adapter(std::vector<Option>& table);
void add_train(std::vector<Option>& table);
void add_sweep(std::vector<Option>& table);  ///< and halving

}  // namespace cotune::options
