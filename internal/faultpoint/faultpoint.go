package faultpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Variable is the environment variable that arms a point.
const Variable = "OMNIBUS_FAULTPOINT"

var (
	arms, stops    = strings.CutPrefix(os.Getenv(Variable), "stop=")
	armed, armedAt = parse(arms)
	enabled        = armed != ""
	hits           atomic.Int64
)

// parse splits "name:n". n is 1 if it is missing or invalid.
func parse(s string) (name string, at int64) {
	name, count, found := strings.Cut(s, ":")
	if !found {
		return name, 1
	}
	at, err := strconv.ParseInt(count, 10, 64)
	if err != nil || at < 1 {
		at = 1
	}
	return name, at
}

// Hit kills the process, or stops the goroutine for good, if the point of this name is armed for this
// hit.
func Hit(name string) {
	if enabled {
		hit(name)
	}
}

func hit(name string) {
	if name != armed || hits.Add(1) != armedAt {
		return
	}
	if stops {
		select {}
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic("faultpoint: cannot kill this process: " + err.Error())
	}
	select {} // the signal is on its way
}
