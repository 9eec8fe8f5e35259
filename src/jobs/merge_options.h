/// Merges what was given at several levels into one object, and checks which options may stand together.
#pragma once

#include <initializer_list>
#include <set>

#include "jobs/option_layer.h"

namespace cotune {

/// Layers from the lowest to the highest level; a higher one replaces an option's value. Of options that exclude each
/// other (Option::group) the alternative of the highest level stays; two of equal level are a mistake, unless one is
/// unset (0, false). A value by which an option says nothing takes back what weaker levels say of the same alternative.
/// used: collects the options that a higher level took back, or that gave way to its alternative: they are not without effect.
OptionLayer merge_layers(std::initializer_list<const OptionLayer*> layers, MistakeList& mistakes, std::set<const Option*>& used);

/// Sets the merged options on the target. An option whose condition does not hold is a mistake when it was given for
/// this very job, and is left out when it comes from the defaults, or where an option that the condition reads is a mistake itself.
/// used: collects the options that were set.
void set_options(const OptionLayer& merged, const OptionTarget& target, MistakeList& mistakes,
                 std::set<const Option*>& used);

/// The given option of that path (`train.steps`), or null.
const GivenOption* find_given(const OptionLayer& layer, std::string_view path);

}  // namespace cotune
