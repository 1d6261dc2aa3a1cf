package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// playMain, in the environment, makes the test binary the program.
const playMain = "CACHE_TEST_PLAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(playMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is the front end, with its workers.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Scanner
	log    *os.File
	url    string
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	if _, err := os.ReadFile("histogram.py"); err != nil { // so that a change invalidates a cached test result
		t.Fatal(err)
	}
	client, err := filepath.Abs("../../clients/python/src")
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], append([]string{"-listen", "127.0.0.1:0"}, args...)...)}
	p.cmd.Env = append(os.Environ(), playMain+"=1", "PYTHONPATH="+client, "PYTHONDONTWRITEBYTECODE=1")
	p.log, err = os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewScanner(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if the program has ended
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Log(p.said())
		}
	})
	p.url = strings.TrimPrefix(p.line(), "listening on ")
	return p
}

func (p *program) line() string {
	p.t.Helper()
	if !p.stdout.Scan() {
		p.t.Fatalf("the program has ended: %s", p.said())
	}
	return p.stdout.Text()
}

// said returns the log of the program and its workers.
func (p *program) said() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		p.t.Error(err)
	}
	return string(text)
}

// signal signals the current process of a worker.
func (p *program) signal(worker string, s syscall.Signal) {
	p.t.Helper()
	all := regexp.MustCompile("worker "+worker+` is process (\d+)`).FindAllStringSubmatch(p.said(), -1)
	pid, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		p.t.Fatal(err)
	}
	if err := syscall.Kill(pid, s); err != nil {
		p.t.Error(err)
	}
}

// post returns the status of the answer and its text.
func (p *program) post(file []byte) (int, string) {
	r, err := http.Post(p.url, "application/octet-stream", bytes.NewReader(file))
	if err != nil {
		p.t.Error(err)
		return 0, ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Error(err)
	}
	return r.StatusCode, string(text)
}

// found is an answer with the parts that depend on the pixels.
type found struct {
	Cached    bool
	Mean      string
	Histogram [8]int
}

func (p *program) find(file []byte) (f found) {
	p.t.Helper()
	status, text := p.post(file)
	if err := json.Unmarshal([]byte(text), &f); err != nil || status != http.StatusOK {
		p.t.Errorf("%d: %s", status, text)
	}
	return f
}

// end ends the program, and returns the line that it prints last.
func (p *program) end() string {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	last := p.line()
	if p.stdout.Scan() {
		p.t.Errorf("it prints %q after the summary", p.stdout.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("it ends with %v", err)
	}
	return last
}

func plain(t *testing.T, width, height int, c color.Color) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.Draw(img, img.Rect, image.NewUniform(c), image.Point{}, draw.Src)
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestImages: both workers read the pixels of an image, and a repeated image is not written again.
func TestImages(t *testing.T) {
	t.Parallel()
	p := start(t, "-store", "1048576")
	orange, blue := plain(t, 100, 50, color.RGBA{200, 100, 50, 255}), plain(t, 20, 10, color.RGBA{0, 0, 255, 255})
	for i, tt := range []struct {
		file []byte
		want found
	}{
		{orange, found{false, "#c86432", [8]int{3: 5000}}},
		{blue, found{false, "#0000ff", [8]int{0: 200}}},
		{orange, found{true, "#c86432", [8]int{3: 5000}}},
	} {
		if diff := cmp.Diff(tt.want, p.find(tt.file)); diff != "" {
			t.Errorf("image %d:\n%s", i, diff)
		}
	}
	for text, tt := range map[string]struct {
		file   []byte
		status int
	}{
		"send a PNG or a JPEG": {[]byte("text"), http.StatusBadRequest},
		"too large":            {plain(t, 300, 300, color.White), http.StatusRequestEntityTooLarge},
		"body too large":       {make([]byte, 1<<18+1), http.StatusRequestEntityTooLarge},
		"pixel data":           {orange[:len(orange)/2], http.StatusBadRequest},
	} {
		if status, said := p.post(tt.file); status != tt.status || !strings.Contains(said, text) {
			t.Errorf("%d: %s; want %d: %s", status, said, tt.status, text)
		}
	}
	const header, written, saved = 64, 4 * (100*50 + 20*10), 4 * 100 * 50
	if got, want := p.end(), fmt.Sprintf("images: 3, hits: 1, bytes written: %d, bytes saved: %d", written+2*header, saved+header); got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
}

// TestImageAtOnce: of many requests for one image, one writes it.
func TestImageAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	file := plain(t, 1000, 1000, color.Gray{64})
	answers := make([]found, 8)
	var running sync.WaitGroup
	for i := range answers {
		running.Go(func() { answers[i] = p.find(file) })
	}
	running.Wait()
	written := 0
	for _, f := range answers {
		if !f.Cached {
			written++
		}
		if f.Mean != "#404040" || f.Histogram != [8]int{2: 10_000} {
			t.Errorf("%+v", f)
		}
	}
	if last := p.end(); written != 1 || !strings.HasPrefix(last, "images: 8, hits: 7,") {
		t.Errorf("%d requests wrote the image; %s", written, last)
	}
}

// TestEviction: many clients send images that need more than the store, while workers are killed. An answer is right,
// or asks the client to try again; at the end no worker is still charged for an image.
func TestEviction(t *testing.T) {
	t.Parallel()
	p := start(t, "-store", "1048576")
	var files [12][]byte
	for i := range files {
		files[i] = plain(t, 200, 200, color.Gray{uint8(i)})
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 40 {
				i := rand.IntN(len(files))
				status, text := p.post(files[i])
				if status != http.StatusServiceUnavailable && (status != http.StatusOK || !strings.Contains(text, fmt.Sprintf("#%02[1]x%02[1]x%02[1]x", i))) {
					t.Errorf("image %d: %d: %s", i, status, text)
				}
			}
		})
	}
	p.signal("mean", syscall.SIGKILL)
	p.signal("histogram", syscall.SIGKILL)
	running.Wait()
	for i, file := range files { // more than the store holds: the images from before are evicted
		var status int
		var text string
		for end := time.Now().Add(time.Minute); status != http.StatusOK && time.Now().Before(end); {
			status, text = p.post(file)
		}
		if status != http.StatusOK {
			t.Errorf("image %d: %d: %s", i, status, text)
		}
	}
	p.end()
}

// TestFullStore: while a worker does not read, images fill the store, and a request fails with an error that names the
// cause. The requests before it are answered when the worker continues.
func TestFullStore(t *testing.T) {
	t.Parallel()
	p := start(t, "-store", "1048576")
	p.signal("histogram", syscall.SIGSTOP)
	full := make(chan string, 8)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			switch status, text := p.post(plain(t, 200, 200, color.Gray{uint8(i)})); status {
			case http.StatusOK:
			case http.StatusServiceUnavailable:
				full <- text
			default:
				t.Errorf("%d: %s", status, text)
			}
		})
	}
	for range 2 { // the store has space for six
		if text := <-full; !strings.Contains(text, "full") {
			t.Errorf("it says %s", text)
		}
	}
	p.signal("histogram", syscall.SIGCONT)
	running.Wait()
	p.end()
}

// TestDemonstration: the program posts images to itself, prints the answers, and ends.
func TestDemonstration(t *testing.T) {
	t.Parallel()
	p := start(t, "-demo")
	for i, cached := range []bool{false, false, true, false, true} {
		var f found
		if err := json.Unmarshal([]byte(p.line()), &f); err != nil || f.Cached != cached || f.Mean == "" {
			t.Errorf("answer %d: %+v, %v", i, f, err)
		}
	}
	if last := p.line(); !strings.HasPrefix(last, "images: 5, hits: 2,") {
		t.Error(last)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestWorkerThatCannotStart: the program prints the reason, and ends.
func TestWorkerThatCannotStart(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), playMain+"=1", "PATH=")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "cache: worker histogram has ended: exec:") {
		t.Errorf("%v: %s", err, out)
	}
}
