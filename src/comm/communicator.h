/// Messages and collectives between the ranks of one run, whether ranks are threads of this process or processes of one
/// or several machines (comm/launcher.h). c10d carries what is on hosts, and what is on devices by way of the hosts, unless each rank has
/// a device of its own (comm/device_communicator.h); no other layer sees it.
///
/// A group is made whole and ends whole. Where a rank dies, closes its communicator early or calls abort(), its own
/// waits end at once, and so do those of every rank that has or begins something with it; ranks that touch one of these
/// follow. An ended group is not mended: its communicators are destroyed and, if the run goes on, made anew. There is
/// no time limit on a message, which may wait for a long computation: finding ranks that hang is the caller's.
///
/// The first group makes the process ignore SIGPIPE, if nobody handles it.
///
/// Between two threads on two cores that other programs share, a message of 1.2 MB takes about 0.3 ms (of 4 bytes:
/// 0.04 ms) and an all_reduce of it 0.9 ms (0.1 ms).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace cotune {

/// Communication is over: this rank or another one called abort(), a peer died or its link closed. The message names
/// this rank, what was under way with which peer, and what ended it.
class CommunicationEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A message under way. It keeps its buffer alive, and travels on when nobody holds it any more.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Whether wait() would return, or throw, without waiting.
  virtual bool done() = 0;
  /// Until the buffer may be read (receive) or reused (send). Throws CommunicationEnded.
  virtual void wait() = 0;
};

/// A message that is sent.
class SendTransfer : public Transfer {
 public:
  /// When it was over, which may be long before somebody waits for it: seconds of std::chrono::steady_clock. Once done().
  virtual double over_s() = 0;
};

/// Messages of one kind from one rank to another keep their order; those of two kinds do not wait for each other. Signals are the
/// communicators' own, of messages of the first four kinds between devices.
enum class Channel { activation, error, question, weights, activation_signal, error_signal, question_signal, weights_signal };
std::string to_string(Channel channel);

/// One rank's end of a group of ranks. Used by one thread, but for abort(), and for messages: several threads may send and receive, those
/// of one peer, channel and direction being one thread's. Every call but rank() and size() throws
/// CommunicationEnded once the group has ended.
class Communicator {
 public:
  /// Ends what is still under way, here and at the other ranks. Where every rank goes on to the end, each calls
  /// barrier() first, so that none closes a link over which another still receives.
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  /// Messages between this rank and another one, `peer` != rank(). Both return at once, and data travel beside the
  /// computation. A send is done at the earliest when its receive has been posted: nothing is buffered in between.
  /// buffer: contiguous, any dtype, any size (also none), on a device at both ranks or at none. Of a device, by way of the hosts: a send
  /// copies it to the host first, which waits for the device; a receive is copied to the device by wait(). From device to device neither waits.
  /// The receiver's has as many bytes as the sender's:
  /// Gloo ends the process where it is smaller. When the transfer's holder has dropped it, another thread frees it.
  virtual std::shared_ptr<SendTransfer> send(const at::Tensor& buffer, int32_t peer, Channel channel) = 0;
  virtual std::shared_ptr<Transfer> receive(const at::Tensor& buffer, int32_t peer, Channel channel) = 0;

  /// Collectives: every rank makes the same calls in the same order, with tensors of equal shape (but in start_all_to_all) and dtype
  /// (contiguous), and waits. Messages may be under way meanwhile. From device to device no call here waits: results are there for what
  /// the thread gives its device afterwards, and settle() tells whether they are.
  /// values := sum over ranks, in an order that depends on size() and the number of values alone: all get equal bits.
  virtual void all_reduce(at::Tensor& values) = 0;
  /// all_reduce that returns at once and runs beside the computation: when the transfer's wait() has returned `values` hold the sum,
  /// with the bits of all_reduce. Nobody touches them before. Collectives run one after the other, in the order of the calls.
  virtual std::shared_ptr<Transfer> start_all_reduce(at::Tensor& values) = 0;
  /// Rows to every rank and from every rank, beside the computation like start_all_reduce: given [rows, n] are, in the order of the ranks,
  /// given_rows[r] for rank r, whose row count that rank has as taken_rows[own rank]; taken [Σ taken_rows, n] the same of what comes. Any
  /// count may be 0. Every rank sends what it gives to others once, and nothing else travels.
  virtual std::shared_ptr<Transfer> start_all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                                                     const std::vector<int64_t>& taken_rows) = 0;
  /// The rows of all ranks, as many of each, one below the other in the order of the ranks: own [n, m], all [size · n, m]; beside the
  /// computation like start_all_reduce.
  virtual std::shared_ptr<Transfer> start_all_gather(const at::Tensor& own, at::Tensor& all) = 0;
  /// values := those of rank `root`.
  virtual void broadcast(at::Tensor& values, int32_t root) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;
  /// Waits for collectives from device to device that the calls above have not waited for; throws CommunicationEnded where one has been
  /// broken off, with anything in its tensors. Called by every rank, like these. Of hosts there are none.
  virtual void settle() = 0;

  /// Calls on_closed(peer) once for every rank whose link has closed or closes from now on, on another thread if it does not do so here,
  /// until the communicator is destroyed or abort() is called. Any number may watch.
  virtual void watch_links(std::function<void(int32_t peer)> on_closed) = 0;

  /// From any thread: every wait of this rank, under way or to come, throws CommunicationEnded.
  virtual void abort() noexcept = 0;
};

/// Makes a group of these ranks of a run, which ascend and the asking one is among. Those that are asked for at the same time have no
/// rank in common.
using NewGroup = std::function<std::unique_ptr<Communicator>(const std::vector<int32_t>& ranks)>;

/// Ranks that are threads of this process: element r is for the thread of rank r. Created together by one thread; takes
/// some hundredths of a second. Throws SystemError where the system refuses threads, sockets or the loopback interface.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int32_t size);

}  // namespace cotune
