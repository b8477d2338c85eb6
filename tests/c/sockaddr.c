/* UCX with socket addresses: a server listens on one, and a client connects to it and sends it a message,
 * which is echoed. Without the last argument it is the server: sockaddr ADDRESS PORT [client]. */

#include "common.h"
#include <ucp/api/ucp.h>

#define TAG 7

static ucp_worker_h worker;
static ucp_ep_h endpoint;
static int failed;
/* Longer than an eager message: the receiver reads it. */
static char buffer[1 << 20];

static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static void on_error(void *unused, ucp_ep_h ep, ucs_status_t status)
{
	(void)unused;
	(void)ep;
	fprintf(stderr, "endpoint: %s\n", ucs_status_string(status));
	failed = 1;
}

static void wait_for(void *request, const char *what)
{
	if (UCS_PTR_IS_ERR(request))
		must(UCS_PTR_STATUS(request), what);
	if (!request)
		return;
	while (ucp_request_check_status(request) == UCS_INPROGRESS && !failed)
		ucp_worker_progress(worker);
	CHECK(!failed);
	must(ucp_request_check_status(request), what);
	ucp_request_free(request);
}

/* The client, which checks the last message, may close the connection before the sender has its acknowledgement. */
static void wait_for_last_send(ucs_status_ptr_t request)
{
	if (UCS_PTR_IS_ERR(request))
		must(UCS_PTR_STATUS(request), "send");
	while (request && ucp_request_check_status(request) == UCS_INPROGRESS && !failed)
		ucp_worker_progress(worker);
	if (request)
		ucp_request_free(request);
}

static void create_endpoint(ucp_ep_params_t params)
{
	params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
	params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	params.err_handler.cb = on_error;
	must(ucp_ep_create(worker, &params, &endpoint), "endpoint");
}

static void on_request(ucp_conn_request_h request, void *unused)
{
	(void)unused;
	create_endpoint((ucp_ep_params_t){
		.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
		.conn_request = request,
	});
}

static void exchange_messages(int is_client)
{
	ucp_request_param_t none = { 0 };
	for (int i = 0; i < 2; i++) {
		if (is_client == (i == 0)) {
			memset(buffer, 'a' + i, sizeof(buffer));
			ucs_status_ptr_t request = ucp_tag_send_nbx(endpoint, buffer, sizeof(buffer), TAG, &none);
			if (is_client)
				wait_for(request, "send");
			else
				wait_for_last_send(request);
		} else {
			wait_for(ucp_tag_recv_nbx(worker, buffer, sizeof(buffer), TAG, ~0ull, &none), "receive");
			for (size_t at = 0; at < sizeof(buffer); at++)
				CHECK(buffer[at] == 'a' + i);
		}
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t worker_params = { 0 };
	ucp_context_h ucp;
	ucp_listener_h listener = NULL;
	ucp_request_param_t none = { 0 };
	CHECK(argc >= 3 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
	address.sin_port = htons(atoi(argv[2]));
	ucs_sock_addr_t where = { .addr = (struct sockaddr *)&address, .addrlen = sizeof(address) };
	must(ucp_init(&params, NULL, &ucp), "context");
	must(ucp_worker_create(ucp, &worker_params, &worker), "worker");
	if (argc == 3) {
		ucp_listener_params_t listening = {
			.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
			.sockaddr = where,
			.conn_handler = { .cb = on_request },
		};
		must(ucp_listener_create(worker, &listening, &listener), "listener");
		while (!endpoint)
			ucp_worker_progress(worker);
	} else {
		create_endpoint((ucp_ep_params_t){
			.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS,
			.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
			.sockaddr = where,
		});
	}
	exchange_messages(argc > 3);
	if (argc > 3) {
		wait_for(ucp_ep_close_nbx(endpoint, &none), "close");
	} else {
		/* The client closes the connection, which is reported to the error handler. */
		while (!failed)
			ucp_worker_progress(worker);
	}
	if (listener)
		ucp_listener_destroy(listener);
	puts("done");
	return 0;
}
