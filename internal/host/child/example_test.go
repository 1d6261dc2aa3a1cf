//go:build unix

package child_test

import (
	"context"
	"fmt"
	"os"

	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

func Example() {
	gaveUp := make(chan child.Event, 1)
	m := child.New(child.Options{Out: os.Stdout, OnEvent: func(e child.Event) {
		if e.Kind == child.EventGaveUp {
			gaveUp <- e
		}
	}})
	defer m.Close(context.Background())
	_, err := m.Start(child.Spec{
		Name:    "talker/0",
		Args:    []string{"sh", "-c", "echo hello; exit 3"},
		Restart: child.Never,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-gaveUp)
	// Output:
	// talker/0 | hello
	// talker/0: given up: its restart policy is never; last: exit status 3
}
