// What the C interface says of itself and of failures.
#include "abi.h"

#include <cerrno>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <system_error>

namespace megalith {
namespace {

// Of this thread's last failure. Not a string: there may be no memory for one.
thread_local char last_error[1024] = "";

void keep(const char* doing, const char* what) {
  std::snprintf(last_error, sizeof(last_error), "%s%s%s", doing, *doing && *what ? ": " : "", what);
}

}  // namespace

int32_t failure_code(const char* doing) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    keep(doing, "");
    return kOutOfMemory;
  } catch (const std::length_error&) {
    // A buffer of more bytes than there are addresses.
    keep(doing, "");
    return kOutOfMemory;
  } catch (const std::system_error& error) {
    const int32_t number = error.code().value();
    keep(doing, number == ENOMEM ? "" : error.what());
    return number == ENOMEM ? kOutOfMemory : number > 0 ? -number : kFailed;
  } catch (const CacheFull& error) {
    keep("", error.what());
    return kCacheFull;
  } catch (const StorageError& error) {
    keep("", error.what());
    return kStorageFailed;
  } catch (const std::exception& error) {
    keep(doing, error.what());
  } catch (...) {
    keep(doing, "unknown failure");
  }
  return kFailed;
}

}  // namespace megalith

MG_EXPORT int32_t mg_abi_version() noexcept { return kAbiVersion; }

// What the last function of this thread that failed was doing, and why it failed unless for want of memory.
MG_EXPORT const char* mg_last_error() noexcept { return megalith::last_error; }
