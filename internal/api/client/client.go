// Package client is the typed client of the API: what every face, and every node that asks another, uses.
//
//	call --> endpoint that answered last --no connection--> next --> ... --> "no node answered: which, and why"
//	                    |
//	                    +-- connection broke or time-out after it was sent:
//	                        a question is asked again elsewhere; a change is not, for it may have happened
//
// Errors carry the fault.Kind that the cluster gave them; a node that does not answer is fault.Unavailable, and a
// change with unknown effect is fault.Aborted. It must not know commands, terminals or how a cluster works.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"samovar/internal/fault"
)

// Options adjust a client. The zero value is fit for use.
type Options struct {
	// Timeout bounds each call, whatever number of nodes it tries; streams only until they begin. 0: 30 seconds.
	Timeout time.Duration
	// DialTimeout bounds each connection. 0: 3 seconds.
	DialTimeout time.Duration
	// Retry is the first pause before a broken stream is opened again; it doubles up to 20 times that. 0: 500 ms.
	Retry time.Duration
	// Silence is how long a stream may bring nothing, not even a keep-alive. 0: 45 seconds.
	Silence time.Duration
	// TLS is for endpoints with https://.
	TLS *tls.Config
	// Header is added to every request.
	Header http.Header
	// Notice, if set, hears of every node that did not answer while others may still, and of broken streams that
	// will be opened again. It may be called from many goroutines.
	Notice func(endpoint string, err error)
}

// Client asks a cluster. It may be used by many goroutines.
type Client struct {
	endpoints []endpoint
	options   Options
	http      *http.Client
	first     atomic.Int32 // index of the endpoint that answered last
}

// endpoint is where one node serves the API.
type endpoint struct {
	name string // as the user gave it
	base string // scheme://host:port
}

// New makes a client of nodes that are given as host:port, or with http:// or https:// before it. It connects to
// none of them.
func New(endpoints []string, options Options) (*Client, error) {
	options.Timeout = cmp.Or(options.Timeout, 30*time.Second)
	options.DialTimeout = cmp.Or(options.DialTimeout, 3*time.Second)
	options.Retry = cmp.Or(options.Retry, 500*time.Millisecond)
	options.Silence = cmp.Or(options.Silence, 45*time.Second)
	if options.Notice == nil {
		options.Notice = func(string, error) {}
	}
	c := &Client{options: options}
	for _, text := range endpoints {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, e)
	}
	if len(c.endpoints) == 0 {
		return nil, fault.New(fault.Invalid, "connect", "no endpoint; want host:port")
	}
	dialer := &net.Dialer{Timeout: options.DialTimeout, KeepAlive: 15 * time.Second}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         dialer.DialContext, // no proxy: nodes are near
			TLSClientConfig:     options.TLS,
			TLSHandshakeTimeout: options.DialTimeout,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     time.Minute, // shorter than the server's, or a change could meet a closing connection
			ForceAttemptHTTP2:   true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func parseEndpoint(text string) (endpoint, error) {
	bad := fault.New(fault.Invalid, "endpoint "+text, "want host:port, like 127.0.0.1:7700 or n1.example.com:7700")
	name, scheme := text, "http"
	if before, rest, found := strings.Cut(text, "://"); found {
		scheme, name = before, strings.TrimSuffix(rest, "/")
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil || host == "" || port == "" || strings.ContainsAny(name, "/ @?#") || scheme != "http" && scheme != "https" {
		return endpoint{}, bad
	}
	base := scheme + "://" + name
	if _, err := url.Parse(base); err != nil {
		return endpoint{}, bad
	}
	return endpoint{name: name, base: base}, nil
}

// order lists the endpoints, the one that answered last before the others.
func (c *Client) order() []int {
	order := make([]int, 0, len(c.endpoints))
	first := int(c.first.Load())
	for i := range c.endpoints {
		order = append(order, (first+i)%len(c.endpoints))
	}
	return order
}

// deadline gives a context for one call.
func (c *Client) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.options.Timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.options.Timeout)
}
