package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/api"
	"samovar/internal/api/fake"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", name, got)
	}
}

// buffer is an output that can be read while a command writes.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	come chan struct{} // a token when something was written
}

func newBuffer() *buffer { return &buffer{come: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.come <- struct{}{}:
	default:
	}
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// wait blocks until the output has a text, or the test ends.
func (b *buffer) wait(t *testing.T, text string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.come:
		case <-limit:
			t.Fatalf("%q did not come: %q", text, b.String())
		}
	}
}

// desk runs commands against a cluster.
type desk struct {
	cluster  *fake.Cluster
	address  string
	terminal bool
	typed    string
	out, err *buffer
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	c := fake.New()
	ts := httptest.NewServer(api.NewServer(c, api.Options{}))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return &desk{cluster: c, address: ts.Listener.Addr().String()}
}

// run runs one command and returns its exit code; its output is in out and err.
func (d *desk) run(ctx context.Context, args ...string) int {
	d.prepare()
	return Execute(ctx, d.root(), args)
}

func (d *desk) prepare() { d.out, d.err = newBuffer(), newBuffer() }

func (d *desk) root() *cobra.Command {
	return New(Streams{In: strings.NewReader(d.typed), Out: d.out, Err: d.err, InTerminal: d.terminal, OutTerminal: d.terminal, ErrTerminal: d.terminal,
		Env: func(name string) string {
			if name == "SAMOVAR_ENDPOINT" {
				return d.address
			}
			return ""
		}, Zone: time.UTC, Refresh: time.Hour}, Options{Version: "0.1.0"})
}

// script runs lines of commands and prints them with what they print.
func (d *desk) script(t *testing.T, lines string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		code := d.run(t.Context(), strings.Fields(line)...)
		fmt.Fprintf(&b, "$ samovar %s\n%s", line, d.out)
		for text := range strings.Lines(d.err.String()) {
			fmt.Fprintf(&b, "[stderr] %s", text)
		}
		if code != 0 {
			fmt.Fprintf(&b, "[exit %d]\n", code)
		}
		b.WriteString("\n")
	}
	text := strings.ReplaceAll(b.String(), runtime.Version(), "GOVERSION")
	if d.address != "" {
		text = strings.ReplaceAll(text, d.address, "ADDRESS")
	}
	return text
}

// looking are commands that change nothing.
const looking = `
	status
	node list
	node info n1
	node info n3
	pool list
	pool info ssd1
	pool info ssd3
	volume list
	volume info tea
	volume info milk
	events
	events --limit 1
	events --since 0000000000000001
	events --since 2026-03-01T12:01:00Z
	version
`

// changing are commands that change something, in an order that works.
const changing = `
	pool create n1 /srv/samovar/ssd9 --name ssd9
	volume create sugar --size 1GiB
	volume create cream --size 1.5TiB --pool ssd1,ssd2,ssd9 --extent-size 256MiB
	volume attach sugar --node n2
	volume attach sugar --node n2
	volume verify sugar
	volume detach sugar
	volume delete sugar --yes
`

func each(script, flags string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(script)) {
		b.WriteString(strings.TrimSpace(line) + flags + "\n")
	}
	return b.String()
}

func TestTables(t *testing.T) {
	golden(t, "table.golden", newDesk(t).script(t, looking+changing+looking))
}
func TestJSON(t *testing.T) {
	golden(t, "json.golden", newDesk(t).script(t, each(looking+changing, " -o json")))
}
func TestYAML(t *testing.T) {
	golden(t, "yaml.golden", newDesk(t).script(t, each(looking+changing, " -o yaml")))
}

// TestRichVolume shows everything that a volume can have.
func TestRichVolume(t *testing.T) {
	d := newDesk(t)
	d.cluster.Change(func(st *resource.Status, nodes []resource.Node, _ []resource.Pool, volumes []resource.Volume) {
		*st = resource.Status{Cluster: "kitchen", Healthy: true, Store: "ok", Survives: "any one node"}
		nodes[2].Witness, nodes[2].Cause = true, "evil\x1b[2Jcause\nline"
		v := &volumes[0]
		v.State, v.Suspended, v.Doubtful = "suspended", "no copy can be reached", 3<<20
		v.Progress = &resource.Progress{Todo: 64 << 20, Done: 24 << 20, Rate: 1 << 20, Left: "40s"}
		v.Verified = &resource.Verified{At: fake.Start, Bytes: 512 << 20, Copies: 2}
		volumes[1].Redundant, volumes[1].Replicas[1].State = false, "catching-up"
	})
	golden(t, "rich.golden", d.script(t, "status\nnode list\nvolume list\nvolume info milk\nvolume info milk -o yaml"))
}

func TestVerifyDifferences(t *testing.T) {
	d := newDesk(t)
	d.cluster.SetVerified(resource.Verified{At: fake.Start, Bytes: 10 << 30, Copies: 3, Differences: []resource.Difference{
		{Offset: 1 << 20, Length: 65536, Sums: map[string]string{"ssd1": "aaaa", "ssd2": "bbbb", "ssd3": "aaaa"}},
		{Offset: 9 << 20, Length: 131072, Sums: map[string]string{"ssd1": "1", "ssd2": "2", "ssd3": "3"}},
	}})
	golden(t, "differences.golden", d.script(t, "volume verify tea\nvolume verify tea -o json"))
	d.cluster.SetVerified(resource.Verified{Copies: 2, Differences: make([]resource.Difference, 100)})
	if d.run(t.Context(), "volume", "verify", "tea"); !strings.Contains(d.out.String(), "100 or more places") {
		t.Errorf("%s", d.out)
	}
}

func TestVerifyProgressOnATerminal(t *testing.T) {
	d := newDesk(t)
	d.terminal = true
	if code := d.run(t.Context(), "volume", "verify", "tea"); code != 0 || !strings.Contains(d.err.String(), "\rvolume tea: comparing, 100% of 10GiB\x1b[K") || !strings.HasSuffix(d.err.String(), "\r\x1b[K") {
		t.Errorf("%d %q", code, d.err)
	}
}

// TestFailures has wrong command lines, refusals and their ways out.
func TestFailures(t *testing.T) {
	d := newDesk(t)
	golden(t, "failures.golden", d.script(t, `
		nonsense
		volum list
		volume lst
		volume list extra
		volume info
		volume info tea milk
		volume list --nonsense
		volume list -o xml
		volume list --timeout 0s
		volume list --endpoint n1
		volume info Tea
		volume info tea@monday
		volume info none
		node info none
		pool info none
		pool create n1 /srv/x
		pool create n1 srv --name x
		pool create n1 /srv/x --name ssd1
		volume create sugar
		volume create sugar --size 10X
		volume create sugar --size ten
		volume create sugar --size -1
		volume create sugar --size 0
		volume create sugar --size 1000
		volume create Sugar --size 1GiB
		volume create tea --size 1GiB
		volume create sugar --size 1GiB --replicas 0
		volume create sugar --size 1GiB --replicas 9
		volume create sugar --size 1GiB --replicas 3 --pool ssd1
		volume create sugar --size 1GiB --extent-size 3MiB
		volume attach tea --node n2
		volume attach none
		volume detach none
		volume verify none
		volume delete tea --yes
		volume delete tea
		volume delete none --yes
		events --limit 0
		events --since -1h
	`))
}

// TestEveryKindHasItsExitCode compares the codes with docs/errors.md, and looks at the printed line.
func TestEveryKindHasItsExitCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(t)
	row := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(line, "| `") {
			continue
		}
		row++
		kind := fault.Kind(row)
		d.cluster.Fail("Status", fault.New(kind, "ask", "words"))
		if code := d.run(t.Context(), "status"); fmt.Sprint(code) != strings.TrimSpace(cells[3]) {
			t.Errorf("%v: exit code %d, documented %s", kind, code, cells[3])
		}
		if text := d.err.String(); !strings.HasPrefix(text, "samovar: ask: words") || strings.Count(text, "\n") != 1 {
			t.Errorf("%v: %q", kind, text)
		}
	}
	if row != int(fault.Internal) {
		t.Errorf("%d kinds are documented", row)
	}
	if ExitCode(nil) != 0 {
		t.Error("success has an exit code")
	}
}

func TestClusterTellsTheWayOut(t *testing.T) {
	d := newDesk(t)
	d.cluster.Fail("Attach", fault.New(fault.Busy, "volume tea", "held by node n2; run samovar volume detach tea\x1b[2J"))
	d.run(t.Context(), "volume", "attach", "tea")
	if got, want := d.err.String(), "samovar: volume tea: held by node n2; run samovar volume detach tea?[2J\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestEndpoints(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	d := newDesk(t)
	alive := d.address
	d.address = dead
	if code := d.run(t.Context(), "status"); code != 4 || d.err.String() != "samovar: ask for the status: "+dead+
		" did not answer: connection refused (is the daemon running there? name other nodes with --endpoint or SAMOVAR_ENDPOINT)\n" {
		t.Errorf("nobody: %d %q", code, d.err)
	}
	if code := d.run(t.Context(), "version"); code != 0 || !strings.Contains(d.out.String(), "none: ") {
		t.Errorf("version: %d %q %q", code, d.out, d.err)
	}
	d.address = dead + "," + alive
	if code := d.run(t.Context(), "status"); code != 0 || d.err.String() != "samovar: "+dead+" did not answer: connection refused; trying on\n" {
		t.Errorf("from the environment: %d %q", code, d.err)
	}
	d.address = dead
	if code := d.run(t.Context(), "--endpoint", alive, "volume", "list"); code != 0 || d.err.String() != "" {
		t.Errorf("from the flag: %d %q", code, d.err)
	}
}

func TestDeleteAsks(t *testing.T) {
	d := newDesk(t)
	d.terminal = true
	for typed, want := range map[string]int{"": 1, "\n": 1, "y\n": 1, "tea\n": 1, "milk\n": 0} {
		d.typed = typed
		if code := d.run(t.Context(), "volume", "delete", "milk"); code != want {
			t.Errorf("%q: %d %s", typed, code, d.err)
		}
		if want == 0 {
			d.run(t.Context(), "volume", "create", "milk", "--size", "1GiB")
		}
	}
	if n := strings.Count(strings.Join(d.cluster.Calls(), "\n"), "DeleteVolume milk"); n != 1 {
		t.Errorf("deleted %d times", n)
	}
	d.typed = "none\n"
	if code := d.run(t.Context(), "volume", "delete", "none"); code != 3 {
		t.Errorf("a volume that is not there: %d %s", code, d.err)
	}
}

// TestDeleteIsInterrupted stops a command that waits for an answer.
func TestDeleteIsInterrupted(t *testing.T) {
	d := newDesk(t)
	d.prepare()
	in, typing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer typing.Close()
	root := New(Streams{In: in, Out: d.out, Err: d.err, InTerminal: true, Env: func(string) string { return d.address }}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	code := make(chan int, 1)
	go func() { code <- Execute(ctx, root, []string{"volume", "delete", "milk"}) }()
	d.err.wait(t, "Type its name")
	cancel()
	if got := <-code; got != 4 || !strings.Contains(d.err.String(), "nothing was deleted") {
		t.Errorf("%d %s", got, d.err)
	}
}
