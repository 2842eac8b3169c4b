package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"samovar/internal/fault"
)

func testPreamble(t testing.TB, p Purpose, random string) Preamble {
	t.Helper()
	b, err := NewPreamble([16]byte{0xc1}, p, strings.NewReader(strings.Repeat(random, 16)[:16]))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// meet runs both halves against each other.
func meet(t *testing.T, dialer, acceptor Preamble) (d, a Session, dErr, aErr error) {
	t.Helper()
	x, y := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a, aErr = Answer(y, acceptor)
	}()
	d, dErr = Open(x, dialer)
	<-done
	x.Close()
	y.Close()
	return d, a, dErr, aErr
}

func TestPreamblesAgree(t *testing.T) {
	for _, purpose := range []Purpose{Engine, Copier} {
		d, a, dErr, aErr := meet(t, testPreamble(t, purpose, "dialer"), testPreamble(t, Replica, "acceptor"))
		if dErr != nil || aErr != nil {
			t.Fatal(dErr, aErr)
		}
		if d.Number != a.Number || d.Number == 0 || d.Version != 1 || a.Version != 1 || d.Local != purpose ||
			a.Remote != purpose || d.Remote != Replica || a.Local != Replica {
			t.Fatalf("%+v, %+v", d, a)
		}
	}
	d1, _, _, _ := meet(t, testPreamble(t, Engine, "dialer"), testPreamble(t, Replica, "acceptor"))
	d2, _, _, _ := meet(t, testPreamble(t, Engine, "dialer"), testPreamble(t, Replica, "another"))
	d3, _, _, _ := meet(t, testPreamble(t, Engine, "caller"), testPreamble(t, Replica, "acceptor"))
	if d1.Number == d2.Number || d1.Number == d3.Number {
		t.Fatal("two connections have one number")
	}
}

// Both sides learn both values of what differs.
func TestPreamblesDiffer(t *testing.T) {
	for name, test := range map[string]struct {
		change func(d, a *Preamble)
		want   fault.Kind
		words  [2]string
	}{
		"cluster": {func(d, a *Preamble) { d.Cluster[0] = 0xc2 }, fault.Foreign, [2]string{"c20000", "c10000"}},
		"newer":   {func(d, a *Preamble) { d.Lowest, d.Highest = 3, 5 }, fault.Newer, [2]string{"3 to 5", "1 to 1"}},
		"older":   {func(d, a *Preamble) { a.Lowest, a.Highest = 3, 5 }, fault.Newer, [2]string{"3 to 5", "1 to 1"}},
		"purpose": {func(d, a *Preamble) { a.Purpose = Engine }, fault.Foreign, [2]string{"as engine", "answers"}},
		"both":    {func(d, a *Preamble) { d.Purpose = Replica }, fault.Foreign, [2]string{"as replica", "answers"}},
		"future":  {func(d, a *Preamble) { d.Purpose = 9 }, fault.Foreign, [2]string{"as purpose 9", "as replica"}},
		"itself":  {func(d, a *Preamble) { a.Connection = d.Connection }, fault.Foreign, [2]string{"itself", "6469616c6572"}},
	} {
		d, a := testPreamble(t, Engine, "dialer"), testPreamble(t, Replica, "acceptor")
		test.change(&d, &a)
		_, _, dErr, aErr := meet(t, d, a)
		for _, err := range []error{dErr, aErr} {
			if fault.KindOf(err) != test.want || !strings.Contains(err.Error(), test.words[0]) ||
				!strings.Contains(err.Error(), test.words[1]) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// Ranges that overlap settle on the highest common version.
	d, a := testPreamble(t, Engine, "dialer"), testPreamble(t, Replica, "acceptor")
	d.Highest, a.Highest = 4, 3
	if s, _, err, _ := meet(t, d, a); err != nil || s.Version != 3 {
		t.Fatal(s, err)
	}
	d.Lowest, d.Highest = 5, 4
	_, _, _, err := meet(t, d, a)
	wantFault(t, err, fault.Corrupt)
}

func TestPreambleBytes(t *testing.T) {
	b := testPreamble(t, Copier, "dialer").Append(nil)
	if len(b) != PreambleSize {
		t.Fatal(len(b))
	}
	for n := range b {
		_, err := ReadPreamble(bytes.NewReader(b[:n]))
		wantFault(t, err, fault.Unavailable)
		if n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	for n := range len(b) * 8 {
		b[n/8] ^= 1 << (n % 8)
		want := fault.Corrupt
		if n < 64 {
			want = fault.Foreign
		}
		_, err := ReadPreamble(bytes.NewReader(b))
		wantFault(t, err, want)
		b[n/8] ^= 1 << (n % 8)
	}
	_, err := ReadPreamble(strings.NewReader("GET / HTTP/1.1\r\n"))
	wantFault(t, err, fault.Foreign)
	_, err = NewPreamble([16]byte{}, Engine, strings.NewReader("short"))
	wantFault(t, err, fault.Internal)
}

func FuzzPreamble(f *testing.F) {
	f.Add(testPreamble(f, Engine, "dialer").Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadPreamble(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := ReadPreamble(bytes.NewReader(p.Append(nil)))
		if err != nil || again != p {
			t.Fatal(again, err)
		}
	})
}
