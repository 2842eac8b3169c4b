package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"samovar/internal/fault"
	"samovar/internal/resource"
)

// start runs a command that does not end by itself; stop ends it and gives its exit code.
func (d *desk) start(t *testing.T, args ...string) (stop func() int, code <-chan int) {
	t.Helper()
	d.prepare()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	root := d.root()
	go func() { ended <- Execute(ctx, root, args) }()
	t.Cleanup(cancel)
	return func() int { cancel(); return <-ended }, ended
}

func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name     string
		args     []string
		terminal bool
		between  string // what stands between two pictures
	}{
		{"terminal", []string{"volume", "list", "-w"}, true, "\x1b[H"},
		{"file", []string{"volume", "list", "--watch"}, false, "\n\n"},
		{"json", []string{"volume", "list", "-w", "-o", "json"}, false, "\n]\n[\n"},
		{"yaml", []string{"volume", "list", "-w", "-o", "yaml"}, false, "\n---\n"},
		{"info", []string{"volume", "info", "tea", "-w"}, true, "\x1b[H"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			d.terminal = c.terminal
			stop, _ := d.start(t, c.args...)
			d.out.wait(t, "n1")
			d.cluster.Publish("volume tea", "nothing", "no difference to see", "info")
			d.cluster.Change(func(_ *resource.Status, _ []resource.Node, _ []resource.Pool, volumes []resource.Volume) {
				volumes[1].Holder = "n2-of-another-name"
			})
			d.cluster.Publish("volume tea", "moved", "", "info")
			d.out.wait(t, "n2-of-another-name")
			if code := stop(); code != 0 {
				t.Errorf("exit code %d: %s", code, d.err)
			}
			text := d.out.String()
			if n := strings.Count(text[1:], c.between); c.name != "info" && n != 1+strings.Count(c.between, "\x1b") {
				t.Errorf("%d pictures: %q", n, text)
			}
			if c.terminal != strings.Contains(text, "\x1b") {
				t.Errorf("escapes: %q", text)
			}
		})
	}
}

// TestWatchOutlivesTrouble keeps the last picture while the cluster is away, and ends when the object is gone.
func TestWatchOutlivesTrouble(t *testing.T) {
	d := newDesk(t)
	_, ended := d.start(t, "volume", "info", "milk", "-w")
	d.out.wait(t, "milk")
	d.cluster.Fail("Volume", fault.New(fault.Unavailable, "volume milk", "the cluster store is away"))
	d.cluster.Publish("node n2", "offline", "", "error")
	d.cluster.Fail("Volume", nil)
	d.cluster.Change(func(_ *resource.Status, _ []resource.Node, _ []resource.Pool, volumes []resource.Volume) {
		volumes[0].Doubtful = 7 << 20
	})
	d.cluster.Publish("volume milk", "doubtful", "", "warning")
	d.out.wait(t, "7MiB")
	d.cluster.Fail("Volume", fault.New(fault.NotFound, "volume milk", "no such volume"))
	d.cluster.Publish("volume milk", "deleted", "", "info")
	if code := <-ended; code != 3 {
		t.Errorf("exit code %d: %s", code, d.err)
	}
}

func TestWatchFailsAtOnce(t *testing.T) {
	d := newDesk(t)
	d.cluster.Fail("Volumes", fault.New(fault.Unavailable, "list volumes", "the cluster store is away"))
	if code := d.run(t.Context(), "volume", "list", "-w"); code != 4 {
		t.Errorf("exit code %d: %s", code, d.err)
	}
	d = newDesk(t)
	d.cluster.Fail("Follow", fault.New(fault.Permission, "follow", "no"))
	if code := d.run(t.Context(), "volume", "list", "-w"); code != 1 || !strings.Contains(d.err.String(), "follow: no") {
		t.Errorf("exit code %d: %s", code, d.err)
	}
}

func TestFollowEvents(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		old  bool // whether old events are shown
	}{
		{"table", nil, true},
		{"json", []string{"-o", "json"}, true},
		{"yaml", []string{"-o", "yaml"}, true},
		{"since id", []string{"--since", "0000000000000003"}, false},
		{"since time", []string{"--since", "2026-03-01T13:00:00Z"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			stop, _ := d.start(t, append([]string{"events", "--follow"}, c.args...)...)
			if c.old {
				d.out.wait(t, "attached")
			}
			if err := d.cluster.Followed(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.cluster.Publish("volume tea", "live", "it happens now", "info")
			d.out.wait(t, "it happens now")
			d.cluster.Break()
			d.cluster.Publish("volume tea", "later", "after a break", "info")
			d.out.wait(t, "after a break")
			if code := stop(); code != 0 {
				t.Errorf("exit code %d: %s", code, d.err)
			}
			text := d.out.String()
			if c.old != strings.Contains(text, "copy-absent") || strings.Count(text, "it happens now") != 1 {
				t.Errorf("%s", text)
			}
			if c.name != "json" {
				return
			}
			for line := range strings.Lines(text) {
				var e resource.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil || e.ID == "" {
					t.Errorf("%q: %v", line, err)
				}
			}
		})
	}
}
