package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAllowUIDs: a process of another user can submit to a host if the host allows that user, and to no
// other host.
func TestAllowUIDs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have processes of two users")
	}
	const uid = 4321 // no test runs as this user
	for _, tt := range []struct{ name, allow, want string }{
		{name: "allowed", allow: "[7, 4321]", want: "WORD"},
		{name: "another is", allow: "[7]", want: "user 4321 may not attach: add it to allow_uids, or run as the host's user"},
		{name: "two others are", allow: "[7, 8]", want: "user 4321 may not attach"},
		{name: "no other user is", allow: "[]", want: "not allowed; run as the host's user, or have the host admit this one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, `
stages: [{stage_id: a, final_output: true, omnibus: {exec: [SELF]}}]
omnibus: {allow_uids: `+tt.allow+`}
`)
			r.await("ready: ")
			dir := filepath.Dir(r.socket)
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			// Other users may not enter the folders in which the socket's folder and the binary lie.
			folder, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			cmd := exec.Command("/proc/self/exe", "submit", "/proc/self/fd/3/"+filepath.Base(r.socket))
			cmd.ExtraFiles = []*os.File{folder}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			said, err := cmd.Output()
			if ok := tt.want == "WORD"; ok != (err == nil) || !strings.Contains(string(said), tt.want) {
				t.Errorf("user %d: %v: %s; want %q", uid, err, said, tt.want)
			}
		})
	}
}
