package tensorqueue

import "time"

// On a busy machine an owner may have no time for a second, and a test that is to know
// what became of each item waits for it.
func init() { withdrawTimeout = time.Minute }

// Joined is how many processes have joined a queue that this one owns.
func Joined(q *Queue) int { return len(q.server.Processes()) }
