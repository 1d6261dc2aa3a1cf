package tensorqueue

import "time"

// On a busy machine the owner may take more than a second. A test that must know what became of each
// item waits for it.
func init() { withdrawTimeout = time.Minute }

// Joined returns how many processes have joined a queue of this process.
func Joined(q *Queue) int { return len(q.server.Processes()) }
