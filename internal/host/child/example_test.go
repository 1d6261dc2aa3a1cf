//go:build unix

package child_test

import (
	"context"
	"fmt"
	"os"

	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

func Example() {
	m := child.New(child.Options{Out: os.Stdout})
	defer m.Close(context.Background())
	c, err := m.Start(child.Spec{
		Name:    "talker/0",
		Args:    []string{"sh", "-c", "echo hello; exit 3"},
		Restart: child.Never,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	<-c.Done()
	fmt.Println(c.Status().State, "after", c.Status().LastExit.Cause())
	// Output:
	// talker/0 | hello
	// failed after exit status 3
}
