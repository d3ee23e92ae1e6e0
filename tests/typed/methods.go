package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Answer is what a request got.
type Answer struct {
	Protocol string `json:"protocol"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Code     int    `json:"code"`
	Type     string `json:"type"`
	Allow    string `json:"allow,omitempty"`
	// Body is what a Status says, or the kind of another object; a text of another type.
	Body string `json:"body,omitempty"`
	// Complaint is what the transport wrote to its log, as about a frame that the protocol does not allow.
	Complaint string `json:"complaint,omitempty"`
}

// methods that change nothing on the paths of the list, which need a body or name nothing.
var methods = []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"}

// runMethods sends every method to every path, over HTTP/1.1 and HTTP/2, with and without credentials.
func runMethods(ctx context.Context, config *rest.Config, paths string) (any, error) {
	complaints := &complaints{}
	log.SetOutput(complaints)
	var answers []Answer
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, credentials := range []bool{true, false} {
			with := rest.CopyConfig(config)
			if !credentials {
				with = rest.AnonymousClientConfig(config)
			}
			client, err := clientOf(with, protocol)
			if err != nil {
				return nil, err
			}
			for _, path := range strings.Fields(paths) {
				for _, method := range methods {
					if !credentials && method != "GET" && method != "HEAD" && method != "OPTIONS" {
						continue
					}
					answer, err := ask(ctx, client, protocol, method, config.Host, path)
					if err != nil {
						return nil, fmt.Errorf("%s %s %s: %w", protocol, method, path, err)
					}
					answer.Complaint = complaints.take()
					if !credentials {
						answer.Protocol += " anonymous"
					}
					answers = append(answers, answer)
				}
			}
			client.CloseIdleConnections()
		}
	}
	return answers, nil
}

func clientOf(config *rest.Config, protocol string) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: protocol == "HTTP/2.0"}
	if protocol == "HTTP/1.1" {
		tlsConfig.NextProtos = []string{"http/1.1"}
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: wrapped, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

func ask(ctx context.Context, client *http.Client, protocol, method, host, path string) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, host+path, nil)
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, err
	}
	if response.Proto != protocol {
		return Answer{}, fmt.Errorf("answered in %s", response.Proto)
	}
	return Answer{
		Protocol: protocol, Method: method, Path: path, Code: response.StatusCode,
		Type: response.Header.Get("Content-Type"), Allow: response.Header.Get("Allow"), Body: brief(body),
	}, nil
}

func brief(body []byte) string {
	var object struct {
		Kind    string         `json:"kind"`
		Reason  string         `json:"reason"`
		Message string         `json:"message"`
		Details map[string]any `json:"details"`
	}
	switch {
	case json.Unmarshal(body, &object) != nil:
		return string(bytes.TrimSpace(body[:min(len(body), 120)]))
	case object.Kind == "Status":
		details, _ := json.Marshal(object.Details)
		return fmt.Sprintf("%s: %s %s", object.Reason, object.Message, details)
	default:
		return object.Kind
	}
}

// complaints is the output of the log of net/http.
type complaints struct {
	lock sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (c *complaints) Write(line []byte) (int, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.text.Write(line)
}

func (c *complaints) take() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	text := c.text.String()
	c.text.Reset()
	return strings.TrimSpace(text)
}
