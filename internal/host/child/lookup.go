package child

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// pathSeparators mark a program as a path, which is not searched for in PATH.
const pathSeparators = "/" + string(os.PathSeparator)

// command prepares the process of a spec, after it has found the program and checked the directory. The
// error is a [*StartError].
func command(s *Spec) (*exec.Cmd, error) {
	refuse := &StartError{Name: s.Name, Program: s.Args[0], Dir: s.Dir}
	dir, err := workingDir(s.Dir)
	if err != nil {
		refuse.Err = err
		return nil, refuse
	}
	cmd := &exec.Cmd{Args: s.Args, Dir: dir}
	cmd.Env = append(cmd.Environ(), s.Env...) // that of the host, with PWD
	cmd.Env = cmd.Environ()                   // one entry for each key
	if strings.ContainsAny(s.Args[0], pathSeparators) {
		cmd.Path, err = findFile(s.Args[0], dir)
	} else {
		refuse.Search = variable(cmd.Env, "PATH")
		cmd.Path, err = findInPath(s.Args[0], refuse.Search)
	}
	if err != nil {
		refuse.Err = err
		return nil, refuse
	}
	return cmd, nil
}

// workingDir returns the directory as an absolute path; empty: the host's.
func workingDir(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &dirError{dir, err}
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", &dirError{dir, err}
	}
	if !info.IsDir() {
		return "", &dirError{dir, syscall.ENOTDIR}
	}
	return abs, nil
}

// findFile returns the absolute path of a program that is given as a path.
func findFile(program, dir string) (string, error) {
	if !filepath.IsAbs(program) {
		program = filepath.Join(dir, program)
	}
	abs, err := filepath.Abs(program) // dir may be empty
	if err != nil {
		return "", err
	}
	return exec.LookPath(abs) // for a path, LookPath only checks the file
}

// findInPath searches the PATH of the new process, which may differ from the host's. Relative entries
// are skipped: their meaning would depend on the working directory.
func findInPath(program, path string) (string, error) {
	err := exec.ErrNotFound
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		found, miss := exec.LookPath(filepath.Join(dir, program))
		if miss == nil {
			return found, nil
		}
		if errors.Is(miss, fs.ErrPermission) {
			err = miss
		}
	}
	return "", err
}

// variable returns the value of a variable in an environment without duplicate keys.
func variable(env []string, key string) string {
	for _, entry := range env {
		k, v, _ := strings.Cut(entry, "=")
		if k == key || runtime.GOOS == "windows" && strings.EqualFold(k, key) {
			return v
		}
	}
	return ""
}
