// The log of calls and of what streams did, by which tests tell orders. Lines, of fields apart by a space:
//
//   call FUNCTION key=value … result=CODE used=BYTES   when the call returns, in the order of the calls;
//                                                       `used` is the device memory of this process
//   begin stream=N OPERATION key=value …               when a stream begins an operation
//   end stream=N OPERATION result=CODE                 when it has ended
//   leak device=N bytes=N                              an allocation that lived when its context ended
//
// Keys of calls: device (its PCI position), stream, event, kernel, bytes, address, and others that speak for
// themselves. Streams and events are numbered from 1 in the order of their creation, over all devices. Each
// line begins with the process's id, since several processes may write to one file.
#pragma once

#include <string>

namespace simulator {

bool log_wanted();
void log_line(const std::string& line);

}  // namespace simulator
