#include "cli/terminal/line_editor.h"

#include <clocale>
#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/utf8.h"
#include "cli/terminal/interruption.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

/// Has the terminal put marks around what is pasted.
constexpr std::string_view marks_pastes = "\x1b[?2004h", marks_no_pastes = "\x1b[?2004l";
constexpr std::wstring_view end_of_paste = L"\x1b[201~";
constexpr int kept_in_memory = 1000;
constexpr char ctrl_d = '\x04';

// What handlers of signals need: plain values, written while `editing` is false or by the handler itself.
std::atomic<bool> editing{false}, was_disturbed{false};
termios before{};

void write_to_terminal(std::string_view bytes) { [[maybe_unused]] const ssize_t count = ::write(STDOUT_FILENO, bytes.data(), bytes.size()); }

void give_back() {
  if (!editing.exchange(false)) return;
  write_to_terminal(marks_no_pastes);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

extern "C" void on_size(int) {
  was_disturbed = true;
  wake_input();
}

/// SIGTSTP and SIGQUIT: what they do without us, on a terminal as it was.
extern "C" void on_leaving(int number) {
  const int reason = errno;
  const bool was_editing = editing;
  termios ours{};
  ::tcgetattr(STDIN_FILENO, &ours);
  give_back();
  struct sigaction own{}, usual{};
  usual.sa_handler = SIG_DFL;
  ::sigaction(number, &usual, &own);
  ::raise(number);
  sigset_t signals, mask;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, number);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, &mask);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  // `fg` goes on here.
  ::sigaction(number, &own, nullptr);
  if (was_editing) {
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &ours);
    write_to_terminal(marks_pastes);
    editing = was_disturbed = true;
    wake_input();
  }
  errno = reason;
}

/// The terminal while a text is edited.
class Editing {
 public:
  Editing() {
    ::tcgetattr(STDIN_FILENO, &before);
    write_to_terminal(marks_pastes);
    was_disturbed = false;
    editing = true;
    call_before_sudden_end(give_back);
    for (size_t i = 0; i < numbers.size(); ++i) {
      struct sigaction action{};
      action.sa_handler = numbers[i] == SIGWINCH ? on_size : on_leaving;
      ::sigaction(numbers[i], &action, &former_[i]);
      if (former_[i].sa_handler == SIG_IGN) ::sigaction(numbers[i], &former_[i], nullptr);
    }
  }
  ~Editing() {
    for (size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], &former_[i], nullptr);
    call_before_sudden_end(nullptr);
    give_back();
  }
  Editing(const Editing&) = delete;
  Editing& operator=(const Editing&) = delete;

 private:
  static constexpr std::array numbers = {SIGTSTP, SIGQUIT, SIGWINCH};
  std::array<struct sigaction, numbers.size()> former_{};
};

/// libedit takes the encoding from the locale; our texts are UTF-8 under every one.
class Utf8Locale {
 public:
  Utf8Locale() : former_(::uselocale(shared())) {}
  ~Utf8Locale() { ::uselocale(former_); }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

 private:
  static locale_t shared() {
    static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", static_cast<locale_t>(nullptr));
    return locale;
  }
  locale_t former_;
};

std::wstring wide(std::string_view text) {
  const std::string utf8 = replace_invalid_utf8(text);
  std::wstring letters;
  for (size_t position = 0; position < utf8.size();) letters += static_cast<wchar_t>(next_code_point(utf8, position));
  return letters;
}

std::string narrow(std::wstring_view letters) {
  std::string text;
  for (const wchar_t letter : letters) append_utf8(text, static_cast<char32_t>(letter));
  return text;
}

}  // namespace

bool LineEditor::is_possible() { return ::isatty(STDIN_FILENO) != 0 && has_drawing_terminal(); }

LineEditor::LineEditor() {
  const Utf8Locale utf8;
  termios was{};
  ::tcgetattr(STDIN_FILENO, &was);
  line_ = ::el_init("cotune", stdin, stdout, stderr);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &was);  // el_init changes it
  history_ = ::history_winit();
  if (line_ == nullptr || history_ == nullptr) throw SystemError("the terminal cannot be edited on: libedit does not start");
  HistEventW event;
  ::history_w(history_, &event, H_SETSIZE, kept_in_memory);
  ::history_w(history_, &event, H_SETUNIQUE, 1);
  ::el_wset(line_, EL_CLIENTDATA, this);
  ::el_wset(line_, EL_HIST, &history_w, history_);
  ::el_wset(line_, EL_PROMPT, &LineEditor::prompt_of);
  ::el_wset(line_, EL_GETCFN, &LineEditor::next_character);
  bind_keys();
  ::el_source(line_, nullptr);
}

LineEditor::~LineEditor() {
  ::el_end(line_);
  ::history_wend(history_);
}

void LineEditor::bind_keys() {
  ::el_wset(line_, EL_EDITOR, L"emacs");
  ::el_wset(line_, EL_ADDFN, L"take-paste", L"Insert what is pasted", &LineEditor::take_paste);
  const auto bind = [this](const std::wstring& key, const wchar_t* what) { ::el_wset(line_, EL_BIND, key.c_str(), what, nullptr); };
  bind(L"\\e[200~", L"take-paste");
  bind(L"^U", L"vi-kill-line-prev");
  bind(L"^W", L"ed-delete-prev-word");
  bind(L"^R", L"em-inc-search-prev");
  bind(L"^I", L"ed-insert");
  for (const wchar_t* key : {L"\\e[H", L"\\eOH", L"\\e[1~", L"\\e[7~"}) bind(key, L"ed-move-to-beg");
  for (const wchar_t* key : {L"\\e[F", L"\\eOF", L"\\e[4~", L"\\e[8~"}) bind(key, L"ed-move-to-end");
  for (const wchar_t* lead : {L"\\e[", L"\\eO"}) {
    const std::wstring begin = lead;
    bind(begin + L"A", L"ed-prev-history");
    bind(begin + L"B", L"ed-next-history");
    bind(begin + L"C", L"ed-next-char");
    bind(begin + L"D", L"ed-prev-char");
  }
  bind(L"\\e[3~", L"ed-delete-next-char");
  // With Shift (2), Alt (3), Ctrl (5) and both (4, 6, 7, 8) held.
  for (const wchar_t held : std::wstring_view(L"2345678")) {
    const std::wstring begin = std::wstring(L"\\e[1;") + held;
    bind(begin + L"A", L"ed-prev-history");
    bind(begin + L"B", L"ed-next-history");
    bind(begin + L"C", held == L'2' ? L"ed-next-char" : L"em-next-word");
    bind(begin + L"D", held == L'2' ? L"ed-prev-char" : L"ed-prev-word");
    bind(begin + L"H", L"ed-move-to-beg");
    bind(begin + L"F", L"ed-move-to-end");
    bind(std::wstring(L"\\e[3;") + held + L"~", L"ed-delete-next-char");
  }
  // Insert, the pages, function keys.
  for (const int key : {2, 5, 6, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24}) bind(L"\\e[" + std::to_wstring(key) + L"~", L"ed-ignore");
  for (const wchar_t key : std::wstring_view(L"PQRS")) bind(std::wstring(L"\\eO") + key, L"ed-ignore");
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  const Utf8Locale utf8;
  prompt_ = wide(prompt);
  has_ended_ = false;
  std::fflush(stdout);
  take_what_was_typed_ahead();
  const Editing terminal;
  ::el_resize(line_);
  ::el_wset(line_, EL_PREP_TERM, 1);  // before the prompt, upon which keys are pressed
  const size_t whole_lines = bytes_.size();
  take_what_was_typed_ahead();
  for (size_t i = whole_lines; i < bytes_.size(); ++i) {
    if (bytes_[i] == '\0') bytes_[i] = ctrl_d;  // pressed before: the terminal marks the end so
  }
  int count = 0;
  const wchar_t* letters = ::el_wgets(line_, &count);
  std::fflush(stdout);
  if (interrupted()) {
    bytes_.clear();
    write_to_terminal("\x1b[J");  // of a text of several lines those below the cursor
    return std::nullopt;
  }
  if (letters == nullptr || count <= 0 || has_ended_) return std::nullopt;
  std::string text = narrow({letters, static_cast<size_t>(count)});
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

void LineEditor::remember(const std::string& text) {
  HistEventW event;
  ::history_w(history_, &event, H_ENTER, wide(text).c_str());
}

/// What can be read without waiting: of a terminal that keeps lines itself whole lines, and the end.
void LineEditor::take_what_was_typed_ahead() {
  for (pollfd waited = {STDIN_FILENO, POLLIN, 0}; ::poll(&waited, 1, 0) > 0;) {
    char buffer[1 << 12];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) {
      bytes_ += ctrl_d;
      return;
    }
    bytes_.append(buffer, static_cast<size_t>(count));
  }
}

int LineEditor::next_byte() {
  while (bytes_.empty()) {
    const auto mend = [this] {
      if (!was_disturbed.exchange(false)) return;
      write_to_terminal("\r\x1b[J");
      ::el_resize(line_);
      ::el_wset(line_, EL_REFRESH);
    };
    if (!wait_for_input(STDIN_FILENO, mend)) return -1;
    char buffer[1 << 12];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    has_ended_ = count <= 0;
    if (has_ended_) return -1;
    bytes_.assign(buffer, static_cast<size_t>(count));
  }
  const auto byte = static_cast<unsigned char>(bytes_.front());
  bytes_.erase(0, 1);
  return byte;
}

int LineEditor::next_character(EditLine* line, wchar_t* to) {
  LineEditor* self = nullptr;
  ::el_wget(line, EL_CLIENTDATA, &self);
  std::string character;
  do {
    const int byte = self->next_byte();
    if (byte < 0) return -1;
    character += static_cast<char>(byte);
  } while (incomplete_utf8_suffix(character) == character.size());
  const std::wstring letters = wide(character);
  if (letters.size() > 1) self->bytes_.insert(0, 1, character.back());  // behind what is not UTF-8
  *to = letters.front();
  return 1;
}

wchar_t* LineEditor::prompt_of(EditLine* line) {
  LineEditor* self = nullptr;
  ::el_wget(line, EL_CLIENTDATA, &self);
  return self->prompt_.data();
}

unsigned char LineEditor::take_paste(EditLine* line, int) {
  std::wstring text;
  while (!text.ends_with(end_of_paste)) {
    wchar_t letter = 0;
    if (::el_wgetc(line, &letter) != 1) return CC_EOF;
    text += letter == L'\r' ? L'\n' : letter;
  }
  text.resize(text.size() - end_of_paste.size());
  std::erase_if(text, [](wchar_t letter) { return (letter < L' ' && letter != L'\n' && letter != L'\t') || letter == L'\x7f'; });
  while (text.ends_with(L'\n')) text.pop_back();
  if (!text.empty() && ::el_winsertstr(line, text.c_str()) != 0) return CC_ERROR;
  return CC_REFRESH;
}

}  // namespace cotune
