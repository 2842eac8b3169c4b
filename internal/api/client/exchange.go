package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"samovar/internal/api/problem"
	"samovar/internal/fault"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 256 << 20

// call is one request, to be sent to whichever node answers.
type call struct {
	op     string // for errors: "attach volume tea"
	method string
	path   string
	query  url.Values
	header http.Header
	body   []byte
	media  string // of body
	stream bool   // the deadline ends when the answer begins
}

// question tells whether asking twice is harmless.
func (c call) question() bool { return c.method == http.MethodGet }

// answer is what a node sent.
type answer struct {
	endpoint string
	response *http.Response
}

// unanswered is one node that did not answer.
type unanswered struct {
	endpoint string
	why      string
	unsent   bool // the node cannot have seen the request
	err      error
}

func (u unanswered) Error() string { return u.endpoint + " did not answer: " + u.why }
func (u unanswered) Unwrap() error { return u.err }

// broken is an error of reading an answer, as opposed to what the answer says.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

// ask sends a call, node after node, until one answers, and hands the answer to use.
func (c *Client) ask(ctx context.Context, k call, use func(answer) error) error {
	var missed []unanswered
	order := c.order()
	for i, index := range order {
		err := c.attempt(ctx, k, index, len(order)-i, use)
		miss, none := errors.AsType[unanswered](err)
		switch {
		case !none && k.question() && i+1 < len(order) && fault.Is(err, fault.Shutdown):
			miss = unanswered{endpoint: c.endpoints[index].name, why: "it is shutting down", unsent: true, err: err}
		case !none:
			return err
		}
		missed = append(missed, miss)
		if !miss.unsent && !k.question() {
			return fault.New(fault.Aborted, k.op, miss.endpoint+" took the request and did not answer ("+miss.why+"); it may have happened: look before you repeat it")
		}
		if ctx.Err() != nil {
			break
		}
		if i+1 < len(order) {
			c.options.Notice(miss.endpoint, miss)
		}
	}
	return c.nobody(k, missed)
}

// nobody is the error when no node answered.
func (c *Client) nobody(k call, missed []unanswered) error {
	if len(missed) == 1 {
		return fault.New(fault.Unavailable, k.op, missed[0].Error())
	}
	parts := make([]string, len(missed))
	for i, m := range missed {
		parts[i] = m.endpoint + " (" + m.why + ")"
	}
	return fault.New(fault.Unavailable, k.op, "no node answered: "+strings.Join(parts, ", "))
}

// attempt asks one node. left is how many nodes can still be asked, this one included.
func (c *Client) attempt(ctx context.Context, k call, index, left int, use func(answer) error) error {
	e := c.endpoints[index]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := wait{limit: c.share(ctx, k, left)}
	timer := time.AfterFunc(w.limit, func() { w.over.Store(true); cancel() })
	defer timer.Stop()
	response, sent, err := c.send(ctx, k, e)
	if err != nil {
		return unanswered{endpoint: e.name, why: w.why(ctx, err), unsent: !sent, err: err}
	}
	defer response.Body.Close()
	if k.stream {
		timer.Stop() // from here on it may take as long as it likes
	}
	c.first.Store(int32(index))
	if response.StatusCode >= 300 {
		return k.refused(e.name, response)
	}
	err = use(answer{e.name, response})
	if _, cut := errors.AsType[broken](err); cut {
		return unanswered{endpoint: e.name, why: w.why(ctx, err), err: err}
	}
	return err
}

// share is the time that one node gets. A question leaves some for the nodes behind a silent one; a change does
// not, for once it was sent it cannot be asked elsewhere.
func (c *Client) share(ctx context.Context, k call, left int) time.Duration {
	if k.stream && !k.question() {
		return c.options.Silence // it works until it has something to tell; keep-alives say that it lives
	}
	rest := c.options.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		rest = time.Until(deadline)
	}
	if rest < 0 && c.options.Timeout < 0 {
		return 1<<63 - 1
	}
	if k.question() {
		rest /= time.Duration(left)
	}
	return rest
}

// send puts the request on a connection; sent tells whether one was found.
func (c *Client) send(ctx context.Context, k call, e endpoint) (response *http.Response, sent bool, err error) {
	target := e.base + k.path
	if len(k.query) > 0 {
		target += "?" + k.query.Encode()
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	request, err := http.NewRequestWithContext(ctx, k.method, target, bytes.NewReader(k.body))
	if err != nil {
		return nil, false, fault.Wrap(fault.Invalid, k.op, err)
	}
	for name, values := range c.options.Header {
		request.Header[name] = values
	}
	for name, values := range k.header {
		request.Header[name] = values
	}
	if k.media != "" {
		request.Header.Set("Content-Type", k.media)
	}
	response, err = c.http.Do(request)
	return response, connected.Load(), err
}

// wait is the time that a node is given.
type wait struct {
	limit time.Duration
	over  atomic.Bool
}

// why says in a few words what kept a node from answering.
func (w *wait) why(ctx context.Context, err error) string {
	resolve, unresolved := errors.AsType[*net.DNSError](err)
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case w.over.Load(), errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("nothing within %v", w.limit.Round(time.Millisecond))
	case errors.Is(ctx.Err(), context.Canceled):
		return "interrupted"
	case unresolved:
		return "the name " + resolve.Name + " does not resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "it closed the connection"
	case isNetwork && network.Timeout():
		return "no connection in time"
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

// refused makes an error of an answer that is none of 2xx.
func (k call) refused(endpoint string, response *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	var body problem.Body
	if json.Unmarshal(data, &body) == nil && body.Error.Kind != "" {
		return body.Error.Err()
	}
	kind := fault.Internal
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		kind = fault.Unavailable
	}
	return fault.New(kind, k.op, fmt.Sprintf("%s answered %s, not as a samovar node does; check the address", endpoint, response.Status))
}

// fetch sends a call and returns the whole answer.
func (c *Client) fetch(ctx context.Context, k call) (data []byte, err error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	err = c.ask(ctx, k, func(a answer) (err error) {
		data, err = io.ReadAll(io.LimitReader(a.response.Body, maxAnswer+1))
		switch {
		case err != nil:
			return broken{err}
		case len(data) > maxAnswer:
			return fault.New(fault.Corrupt, k.op, a.endpoint+" sent more than 256 MiB")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// object sends a call and decodes the answer's JSON. Fields that this version does not know are skipped.
func object[T any](ctx context.Context, c *Client, k call) (value T, err error) {
	data, err := c.fetch(ctx, k)
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(data, &value); err != nil {
		return value, fault.New(fault.Corrupt, k.op, "the answer is not what a samovar node sends: "+err.Error())
	}
	return value, nil
}

// withJSON puts value into the call as its body.
func (k call) withJSON(value any) call {
	k.body, _ = json.Marshal(value) // plain structs of strings and numbers cannot fail
	k.media = "application/json"
	return k
}
