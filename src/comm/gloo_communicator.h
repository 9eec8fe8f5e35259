/// What carries what is on hosts: a c10d process group on Gloo (TCP).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace c10d {
class Store;
}

namespace cotune {

/// Joins rank `rank` of `size` through `store`, which all ranks share and only this group uses; returns when all have
/// joined.
/// address: a name or number of this machine under which the other ranks reach it.
/// joining_time: for the last rank to come.
/// Throws what c10d throws: c10::Error, or a std::runtime_error of Gloo's.
std::unique_ptr<Communicator> gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store, int32_t rank,
                                                int32_t size, const std::string& address,
                                                std::chrono::milliseconds joining_time);

}  // namespace cotune
